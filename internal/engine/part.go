package engine

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Request is what one caller asks for: tokens of one key, or of several keys, all or nothing.
type Request []Part

// InlineParts is how many parts are decided without an allocation: a user, an address, a token and
// a tenant.
const InlineParts = 4

// Part is what a request needs of one key, and the state of the decision over it.
type Part struct {
	Tokens
	state   partState
	limit   *Resolved     // that the request carries, or the key's own if others do; nil is the only one that the key has
	own     bool          // limit is the key's own
	several bool          // other keys are decided with it
	renew   bool          // its lease is at its low-water mark
	now     time.Duration // since its Group's base
	until   time.Duration // the caller stops waiting then
	known   *local.Policy // of the key, once its limit is known: see recall
	refresh int64         // how often Limiter.Refresh had been called before it was

	waiter *waiter         // while it waits
	call   dispatch.Routed // its call, until it is sent

	local.Outcome         // once it is taken or refused
	decider       *Bucket // the key's bucket that decided; nil if none did
}

// partState is the state of a part.
type partState uint8

const (
	undecided      partState = iota // the next source is to be asked
	leftToFailMode                  // all other sources were
	waiting                         // in the queue for Redis' answer
	taken
	refused
)

// enter looks up the part's bucket and limit. It decides the part if no source has to be asked.
func (p *Part) enter() {
	l := p.Limiter
	if l == nil { // the zero Use
		p.state = refused
		return
	}
	if r := Valid(p.Key, p.Cost); r != local.Granted {
		p.decided(l.invalid(p.Key, r))
		return
	}
	if l.mode.Load()&ModeUnlimited != 0 && p.limit == nil && !l.carries.Load() {
		l.AdmittedUnlimited.Add(p.Cost)
		p.decided(local.Decided(l.settings.Load().Initial, local.Granted, local.Local, 0, 0), nil)
		return
	}
	p.setSource(p.find(l.ID(p.Key)), lease)
	p.decideByRule()
}

// pending reports whether the part is still to be decided.
func (p *Part) pending() bool { return p.state == undecided || p.state == leftToFailMode }

// findAgain looks up the part's bucket again, because it was evicted or its policy has changed. It
// reports what decideByRule does.
func (p *Part) findAgain(s source) bool {
	p.setSource(p.find(p.bucket.ID()), s)
	return p.decideByRule()
}

// decideByRule decides the part if its key has no limit, or one that can never admit so many
// tokens. It reports false if the sources are to be asked.
func (p *Part) decideByRule() bool {
	refresh := p.Limiter.refreshes.Load()
	if p.limit != nil && p.exceedsCarried() {
		return true
	}
	b := p.bucket
	by := b.Policy()
	for ; by.Rule == local.Unresolved; by = b.Policy() {
		b.Limiter().resolve(b, p.Key)
	}
	switch {
	case by.Rule == local.Unlimited:
		p.Limiter.AdmittedUnlimited.Add(p.Cost)
	case by.Rule == local.Blocked:
		b.Hot().CountRefused(p.Cost)
	case p.Cost <= by.Cap:
		p.known, p.refresh = by, refresh
		return false
	}
	p.clear()
	p.decided(b.byRule(p.now), b)
	return true
}

// recall gives a bucket that another part of the request has evicted, and that was made anew, the
// limit that PerKey gave its key a moment ago. Otherwise the parts of a request over more keys than
// MaxKeys would evict each other for ever.
func (p *Part) recall() {
	b, l := p.bucket, p.bucket.Limiter()
	if p.known == nil || b.Policy().Rule != local.Unresolved {
		return
	}
	known := p.known.Owner.(*Resolved)
	if known.Limiter != l || known.Settings != l.settings.Load() || p.known.Rule != local.ByLimit {
		return
	}
	b.setPolicy(l.Group.Now(), p.known)
	if l.refreshes.Load() != p.refresh { // Refresh may have come before b was made
		b.setPolicy(l.Group.Now(), p.known.WithRule(local.Unresolved))
	}
}

// answer decides the part by its bucket's limit.
func (p *Part) answer(o local.Outcome) {
	o = p.bucket.share().tell(o, p.now, p.Cost)
	if o.Reason == local.Granted && o.Tier == local.Remote && p.Limiter.mode.Load()&ModeStanding != 0 {
		p.Limiter.Standing.fade()
	}
	p.decided(o, p.bucket)
}

// decided stores how the part was decided, and counts that. b is the bucket that decided it, nil if
// there is none. In shadow mode a refusal admits.
func (p *Part) decided(o local.Outcome, b *Bucket) {
	// A call that waits does not count here when it is refused and asks again, nor when it gives
	// up: see countEnd.
	if !p.asksAgain() || o.Reason != local.Limited && o.Reason != local.Canceled {
		p.Limiter.countRequest(o, p.Key, p.Cost)
	}
	if !o.Allowed() && p.shadow() {
		o = p.Limiter.tryOut(o, p.Key, p.Cost)
		p.clear()
	}
	p.Outcome, p.decider, p.state = o, b, refused
	if o.Allowed() {
		p.state = taken
	}
}

// Told returns how the part was decided.
func (p *Part) Told() Told {
	return Told{Outcome: p.Outcome, Key: p.Key, Cost: p.Cost, Bucket: p.decider, Now: p.now, Carried: p.limit}
}

// State returns how the part was decided, or what it would have been if another part had not
// refused. back says that the request was refused, and that what the part took goes back.
func (p *Part) State(back bool) Told {
	t := p.Told()
	switch {
	case p.Limiter == nil, p.state == refused:
	case p.state == taken:
		if back && p.source != nowhere {
			t.Left += p.Cost
		}
	default:
		t.Outcome, t.Bucket = p.Limiter.invalid(p.Key, local.Unknown)
	}
	return t
}

func (p *Part) shadow() bool { return p.Limiter.mode.Load()&ModeShadow != 0 }

// yield lets everything else that happens at this instant happen first, in a simulation: other
// requests may have waited for the same answer. No two requests begin to wait at one instant, so
// until gives them an order.
func (p *Part) yield() { p.Limiter.Group.Yield(uint64(p.until)) }

// find returns a bucket of the part's key. If requests carry limits, the key has at least that of
// this one from now on.
func (p *Part) find(id local.ID) *Bucket {
	b := p.Limiter.Group.find(p.now, id)
	carried := p.carried()
	p.limit, p.own = p.Limiter.limitOf(p.Key, carried), carried == nil
	if p.limit != nil {
		b.adopt(p.now, p.limit)
	}
	return b
}

// carried returns the limit that the request carries, or nil.
func (p *Part) carried() *Resolved {
	if p.own {
		return nil
	}
	return p.limit
}

// exceedsCarried refuses the part if the burst of the limit that its request carries is too small.
// Otherwise it makes sure that the key has the limit, which other requests may have changed
// meanwhile.
func (p *Part) exceedsCarried() bool {
	rule := p.limit.Limit.Rule()
	if b := p.bucket.Policy(); b.Rule != rule || rule == local.ByLimit && p.Cost > b.Cap {
		p.setSource(p.find(p.bucket.ID()), lease)
	}
	if rule != local.ByLimit || p.Cost <= p.limit.Most() {
		return false
	}
	b := p.bucket
	p.decided(b.refuseForGood(p.now, local.ExceedsBurst), b)
	return true
}

// pending reports whether a part is still to be decided. No part is, once a part that is decided
// with it has refused.
func (r Request) pending() bool {
	pending := false
	for i := range r {
		p := &r[i]
		if p.state == refused && p.several {
			return false
		}
		pending = pending || p.pending()
	}
	return pending
}

// has reports whether a part is in state s.
func (r Request) has(s partState) bool {
	for i := range r {
		if r[i].state == s {
			return true
		}
	}
	return false
}
