package tiered

import (
	"context"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// part is what a request needs of one key, and the state of the decision over it.
type part struct {
	taking
	state   partState
	limit   *resolvedLimit // that the request carries; nil is none
	several bool           // other keys are decided with it
	renew   bool           // its lease is at its low-water mark
	now     time.Duration  // since its Group's base
	until   time.Duration  // the caller stops waiting then
	tries   int            // times that it tried to join its bucket's queue
	known   *local.Policy  // that PerKey gave the key in this request; nil is none
	refresh int64          // how often Limiter.Refresh had been called before that

	waiter *waiter         // while it waits
	call   dispatch.Routed // its call, until it is sent
	d      Decision        // of this part, once it is taken or refused
}

// partState is the state of a part.
type partState uint8

const (
	undecided partState = iota // nothing is taken: Redis has to decide
	fallback                   // Redis does not answer: the fail mode decides
	waiting                    // in the queue for Redis' answer
	taken
	refused
)

// peek decides the part by what this process knows. If the part is one of several, peek may refuse, but takes nothing.
func (p *part) peek() {
	l := p.limiter
	if l == nil { // the zero Use
		p.state = refused
		return
	}
	if r := valid(p.key, p.cost); r != Granted {
		l.invalid(&p.d, p.key, r)
		p.decided()
		return
	}
	if l.mode.Load()&modeUnlimited != 0 && p.limit == nil && !l.carries.Load() {
		l.admittedUnlimited.Add(p.cost)
		l.unlimited(&p.d, p.key)
		p.decided()
		return
	}
	b := p.find(l.id(p.key))
	p.setSource(b, local.FromLease)
	if p.limit != nil && p.decideByRule() { // its own burst may be too small for its cost, though the key's is not
		return
	}
	if b = p.bucket; p.several && (b.Holds(p.now, p.cost) || p.shareHolds()) || !p.several && p.takeFromPot() {
		return
	}
	p.decideHere()
}

// decideHere decides the part by what this process knows, if its lease does not hold the tokens. It takes nothing.
func (p *part) decideHere() {
	if p.decideByRule() {
		return
	}
	if p.limiter.group.closed.Load() || p.bucket.probe(p.now) {
		p.state = fallback
		if p.several {
			p.foresee()
		}
		return
	}
	if v, denied := p.denied(p.bucket); denied {
		p.answer(answer{Limited, Local, v.Left, v.Retry})
		p.decided()
	}
}

// denied reports whether this process knows that b refuses the tokens, and counts that.
func (p *part) denied(b *bucket) (local.Verdict, bool) {
	if p.asksAgain() {
		return b.RefuseWaiter(p.now, p.cost)
	}
	v, denied := b.Refuse(p.now, p.cost)
	if denied {
		b.CountRefused(p.cost)
	}
	return v, denied
}

// foresee refuses the part if the fail mode would. It takes nothing.
func (p *part) foresee() {
	for {
		v := p.bucket.ForeseeFallback(p.now, p.cost, p.limiter.group.fleetOf(p.bucket), true)
		switch v.Outcome {
		case local.Outdated:
			if p.findAgain(local.FromShare) {
				return
			}
			continue
		case local.ShareSpent, local.Failed:
			p.bucket.byFailMode(&p.d, p.now, p.key, v)
			p.decided()
		}
		return
	}
}

// takeFromPot takes the part's tokens from its lease, or else from its key's standing share. It reports false if neither
// holds them.
func (p *part) takeFromPot() bool {
	left, ok, renew := p.bucket.Take(p.now, p.cost)
	switch {
	case ok:
		p.renew = renew
	case p.takeFromShare():
		held, level := p.bucket.Peek(p.now)
		left = min(held+max(level, 0), p.bucket.Policy().Cap)
	default:
		return false
	}
	p.answer(answer{Granted, Local, left, 0})
	p.decided()
	return true
}

// takeFromShare takes the part's tokens from its key's standing share.
func (p *part) takeFromShare() (ok bool) {
	if p.limiter.mode.Load()&modeStanding == 0 {
		return false
	}
	p.limiter.resolve(p.bucket, p.key)
	_, ok = p.limiter.takeShare(p.now, p.hash(), p.bucket.Policy(), p.cost, &p.standing)
	return ok
}

// shareHolds reports whether takeFromShare would find the tokens.
func (p *part) shareHolds() bool {
	if p.limiter.mode.Load()&modeStanding == 0 {
		return false
	}
	p.limiter.resolve(p.bucket, p.key)
	return p.limiter.shareLevel(p.now, p.hash(), p.bucket.Policy()) >= p.cost
}

// join puts the part into its bucket's queue. The part stays undecided if the bucket was evicted or its policy has
// changed.
func (p *part) join() {
	g := p.limiter.group
	w := g.waiter()
	w.AskAgain = p.asksAgain()
	if p.asksForOthers() {
		w.More = g.queues.askForOthers(p.caller, p.bucket.Policy().Cap)
	}
	v, effect := p.bucket.Ask(p.now, p.cost, p.until, w.Waiter)
	if v.Outcome == local.Outdated { // perhaps another part's bucket has evicted it
		p.setSource(p.find(p.bucket.ID()), local.FromLease)
		p.recall()
		if p.bucket.Policy().Rule == local.ByLimit {
			v, effect = p.bucket.Ask(p.now, p.cost, p.until, w.Waiter)
		}
	}
	if effect.Send {
		p.call = p.bucket.route()
		effect.Send = false
	}
	p.bucket.apply(p.now, effect)
	if v.Outcome == local.Waiting {
		p.state, p.waiter = waiting, w
		p.setSource(p.bucket, local.FromRedis)
		return
	}
	p.leave(w, v, Local)
	if v.Outcome != local.Outdated {
		p.takeVerdict(v, Local)
	}
}

// wait waits for the answer.
func (p *part) wait(ctx context.Context) {
	g := p.limiter.group
	w := p.waiter
	begin := g.now()
	v, reason := w.wait(ctx, p.until-begin, p.bucket)
	if p.several {
		p.yield()
	}
	p.now = g.now()
	p.limiter.requests.counts().waits.Observe(p.now - begin)
	p.leave(w, v, Remote)
	p.waiter = nil
	switch reason {
	case Canceled:
		p.answer(answer{Canceled, None, 0, 0})
		p.d.Expired = expired(ctx)
		p.decided()
	case Unavailable:
		if n := p.bucket.node.Load(); n != nil {
			healthOf(n).countOverrun()
		}
		p.state = fallback
	default:
		p.takeVerdict(v, Remote)
	}
}

// leave stores what w learned besides the verdict v, and puts w back into the pool. v is zero if there was no answer.
func (p *part) leave(w *waiter, v local.Verdict, tier Tier) {
	if p.asksForOthers() {
		if v.Outcome != 0 && tier == Remote {
			p.caller.active = w.Active
		}
		if v.Outcome == local.Admitted {
			p.caller.more, p.caller.short = w.MoreGranted, w.Short
		}
	}
	p.limiter.group.waiters.Put(w)
}

// takeVerdict decides the part by the bucket's answer.
func (p *part) takeVerdict(v local.Verdict, tier Tier) {
	switch v.Outcome {
	case local.Admitted:
		p.stamp = v.Stamp
		p.answer(answer{Granted, tier, v.Left, 0})
	case local.Refused:
		p.answer(answer{Limited, tier, v.Left, v.Retry})
	case local.Failed:
		if !p.several {
			p.yield()
		}
		p.state = fallback
		return
	case local.Outdated:
		p.state = undecided
		p.findAgain(local.FromLease)
		return
	}
	p.decided()
}

// fallBack lets the fail mode decide.
func (p *part) fallBack() {
	for {
		p.setSource(p.bucket, local.FromShare)
		switch v := p.bucket.fallBack(&p.d, p.now, p.key, p.cost); v.Outcome {
		case local.Outdated:
			if p.findAgain(local.FromShare) {
				return
			}
			continue
		case local.Admitted: // of the lease
			p.setSource(p.bucket, local.FromRedis)
			p.stamp = v.Stamp
		}
		if p.limiter.mode.Load()&modeStanding != 0 {
			p.d.addShare(p.limiter.group, p.now, p.hash(), p.bucket.Policy(), p.cost)
		}
		p.decided()
		return
	}
}

// findAgain looks up the part's bucket again, because it was evicted or its policy has changed. It reports whether the
// new policy decides the part without a limit.
func (p *part) findAgain(s local.Source) bool {
	p.setSource(p.find(p.bucket.ID()), s)
	return p.decideByRule()
}

// decideByRule decides the part if no limit does.
func (p *part) decideByRule() bool {
	refresh := p.limiter.refreshes.Load()
	decided := false
	if p.limit != nil {
		decided = p.decideByCarried()
	} else {
		decided = !p.limitDecides() && p.taking.decideByRule(&p.d)
	}
	if !decided {
		p.known, p.refresh = p.bucket.Policy(), refresh
		return false
	}
	p.decided()
	return true
}

// recall gives a bucket that another part of the request has evicted, and that was made anew, the limit that PerKey gave
// its key a moment ago. Otherwise the parts of a request over more keys than MaxKeys would evict each other for ever.
func (p *part) recall() {
	b, l := p.bucket, p.bucket.limiter()
	if p.known == nil || b.Policy().Rule != local.Unresolved {
		return
	}
	known := p.known.Owner.(*resolvedLimit)
	if known.limiter != l || known.settings != l.settings.Load() || p.known.Rule != local.ByLimit {
		return
	}
	b.setPolicy(l.group.now(), p.known)
	if l.refreshes.Load() != p.refresh { // Refresh may have come before b was made
		b.setPolicy(l.group.now(), p.known.WithRule(local.Unresolved))
	}
}

// answer writes the part's Decision.
func (p *part) answer(a answer) {
	p.bucket.decide(&p.d, p.now, p.key, a)
	if l := p.limiter; l.mode.Load()&modeStanding != 0 {
		p.d.addShare(l.group, p.now, p.hash(), p.bucket.Policy(), p.cost)
		if a.reason == Granted && a.tier == Remote {
			l.standing.fade()
		}
	}
}

// decided sets the part's state by its Decision. In shadow mode a refusal admits.
func (p *part) decided() {
	if p.limit != nil {
		p.asCarried()
	}
	// A call that waits does not count here when it is refused and asks again, nor when it gives up: see countEnd.
	if !p.asksAgain() || p.d.Reason != Limited && p.d.Reason != Canceled {
		p.limiter.countRequest(&p.d, p.cost)
	}
	if !p.d.Allowed && p.shadow() {
		p.limiter.tryOut(&p.d, p.cost)
		p.clear()
	}
	p.state = refused
	if p.d.Allowed {
		p.state = taken
	}
}

// uncount undoes the count of a part that was admitted, because another part refused.
func (p *part) uncount() {
	l := p.limiter
	switch k := kindOf(&p.d); k {
	case kind(Shadowed): // it counted as refused
	case kind(Shared), kind(Open): // these tokens stay counted
		l.addRequest(p.key, k, 2, 1)
	case byUnlimited:
		l.admittedUnlimited.Add(-p.cost)
		fallthrough
	default:
		l.addRequest(p.key, k, p.cost, -1)
	}
	if k, ok := byRedis(&p.d); ok {
		l.addRequest(p.key, k, p.cost, -1)
	}
}

func (p *part) shadow() bool { return p.limiter.mode.Load()&modeShadow != 0 }

// asksForOthers reports whether the part is for the first caller in a queue, which asks for those behind it too.
func (p *part) asksForOthers() bool {
	return p.asksAgain() && !p.caller.several
}

// yield lets everything else that happens at this instant happen first, in a simulation: other requests may have waited
// for the same answer. No two requests begin to wait at one instant, so until gives them an order.
func (p *part) yield() { p.limiter.group.yield(uint64(p.until)) }
