package engine

import (
	"context"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Part is what a request needs of one key, and the state of the decision over it.
type Part struct {
	Taking
	state   partState
	limit   *Resolved     // that the request carries; nil is none
	several bool          // other keys are decided with it
	renew   bool          // its lease is at its low-water mark
	now     time.Duration // since its Group's base
	until   time.Duration // the caller stops waiting then
	tries   int           // times that it tried to join its bucket's queue
	known   *local.Policy // that PerKey gave the key in this request; nil is none
	refresh int64         // how often Limiter.Refresh had been called before that

	waiter *waiter         // while it waits
	call   dispatch.Routed // its call, until it is sent

	Outcome         // once it is taken or refused
	decider *Bucket // whose bucket it was then; nil if none
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

// decideKnown decides the part by what this process knows. If the part is one of several, that may refuse it, but takes
// nothing.
func (p *Part) decideKnown() {
	l := p.Limiter
	if l == nil { // the zero Use
		p.state = refused
		return
	}
	if r := Valid(p.Key, p.Cost); r != Granted {
		p.decided(l.invalid(p.Key, r))
		return
	}
	if l.mode.Load()&ModeUnlimited != 0 && p.limit == nil && !l.carries.Load() {
		l.AdmittedUnlimited.Add(p.Cost)
		p.decided(Outcome{l.settings.Load().Initial, How{Granted, Local, false}, 0, 0}, nil)
		return
	}
	b := p.find(l.ID(p.Key))
	p.setSource(b, local.FromLease)
	if p.limit != nil && p.decideByRule() { // its own burst may be too small for its cost, though the key's is not
		return
	}
	if b = p.bucket; p.several && (b.Holds(p.now, p.Cost) || p.shareHolds()) || !p.several && p.takeFromPot() {
		return
	}
	p.decideHere()
}

// decideHere decides the part by what this process knows, if its lease does not hold the tokens. It takes nothing.
func (p *Part) decideHere() {
	if p.decideByRule() {
		return
	}
	if p.Limiter.Group.Closed.Load() || p.bucket.probe(p.now) {
		p.state = fallback
		if p.several {
			p.foresee()
		}
		return
	}
	if v, denied := p.denied(p.bucket); denied {
		p.answer(Limited, Local, v.Left, v.Retry)
	}
}

// denied reports whether this process knows that b refuses the tokens, and counts that.
func (p *Part) denied(b *Bucket) (local.Verdict, bool) {
	if p.asksAgain() {
		return b.RefuseWaiter(p.now, p.Cost)
	}
	v, denied := b.Refuse(p.now, p.Cost)
	if denied {
		b.CountRefused(p.Cost)
	}
	return v, denied
}

// foresee refuses the part if the fail mode would. It takes nothing.
func (p *Part) foresee() {
	for {
		by := p.bucket.Policy()
		v := p.bucket.ForeseeFallback(p.now, p.Cost, p.Limiter.Group.fleetOf(p.bucket), true)
		switch v.Outcome {
		case local.Outdated:
			if p.findAgain(local.FromFallback) {
				return
			}
			continue
		case local.FallbackSpent, local.Failed:
			p.decided(byFailMode(by, v), p.bucket)
		}
		return
	}
}

// takeFromPot takes the part's tokens from its lease, or else from its key's standing share. It reports false if neither
// holds them.
func (p *Part) takeFromPot() bool {
	left, ok, renew := p.bucket.Take(p.now, p.Cost)
	if ok {
		p.renew = renew
		p.answer(Granted, Local, left, 0)
		return true
	}
	if p.Limiter.mode.Load()&ModeStanding == 0 {
		return false
	}
	p.Limiter.resolve(p.bucket, p.Key)
	o, ok := p.Limiter.takeShare(p.now, p.bucket, p.bucket.ID(), p.Cost, &p.Taking)
	if ok {
		p.decided(o, p.bucket)
	}
	return ok
}

// shareHolds reports whether takeFromPot would find the tokens in the share.
func (p *Part) shareHolds() bool {
	if p.Limiter.mode.Load()&ModeStanding == 0 {
		return false
	}
	p.Limiter.resolve(p.bucket, p.Key)
	return p.bucket.share().holds(p.now, p.Cost)
}

// join puts the part into its bucket's queue. The part stays undecided if the bucket was evicted or its policy has
// changed.
func (p *Part) join() {
	g := p.Limiter.Group
	w := g.waiter()
	w.AskAgain = p.asksAgain()
	if p.asksForOthers() {
		w.More = g.queues.askForOthers(p.caller, p.bucket.Policy().Cap)
	}
	v, effect := p.bucket.Ask(p.now, p.Cost, p.until, w.Waiter)
	if v.Outcome == local.Outdated { // perhaps another part's bucket has evicted it
		p.setSource(p.find(p.bucket.ID()), local.FromLease)
		p.recall()
		if p.bucket.Policy().Rule == local.ByLimit {
			v, effect = p.bucket.Ask(p.now, p.Cost, p.until, w.Waiter)
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
func (p *Part) wait(ctx context.Context) {
	g := p.Limiter.Group
	w := p.waiter
	begin := g.Now()
	v, reason := w.wait(ctx, p.until-begin, p.bucket)
	if p.several {
		p.yield()
	}
	p.now = g.Now()
	p.Limiter.Requests.Waited(p.now - begin)
	p.leave(w, v, Remote)
	p.waiter = nil
	switch reason {
	case Canceled:
		p.decided(Outcome{p.bucket.Policy(), How{Canceled, None, expired(ctx)}, 0, 0}, p.bucket)
	case Unavailable:
		if n := p.bucket.node.Load(); n != nil {
			nodeOf(n).Overran()
		}
		p.state = fallback
	default:
		p.takeVerdict(v, Remote)
	}
}

// leave stores what w learned besides the verdict v, and puts w back into the pool. v is zero if there was no answer.
func (p *Part) leave(w *waiter, v local.Verdict, tier Tier) {
	if p.asksForOthers() {
		if v.Outcome != 0 && tier == Remote {
			p.caller.active = w.Active
		}
		if v.Outcome == local.Admitted {
			p.caller.more, p.caller.short = w.MoreGranted, w.Short
		}
	}
	p.Limiter.Group.waiters.Put(w)
}

// takeVerdict decides the part by the bucket's answer.
func (p *Part) takeVerdict(v local.Verdict, tier Tier) {
	switch v.Outcome {
	case local.Admitted:
		p.stamp = v.Stamp
		p.answer(Granted, tier, v.Left, 0)
	case local.Refused:
		p.answer(Limited, tier, v.Left, v.Retry)
	case local.Failed:
		if !p.several {
			p.yield()
		}
		p.state = fallback
		return
	case local.Outdated:
		p.state = undecided
		p.findAgain(local.FromLease)
	}
}

// fallBack lets the fail mode decide.
func (p *Part) fallBack() {
	for {
		p.setSource(p.bucket, local.FromFallback)
		o, stamp, ok := p.bucket.fallBack(p.now, p.Cost)
		if !ok {
			if p.findAgain(local.FromFallback) {
				return
			}
			continue
		}
		if o.Reason == Granted { // of the lease
			p.setSource(p.bucket, local.FromRedis)
			p.stamp = stamp
		}
		p.decided(p.bucket.share().tell(o, p.now, p.Cost), p.bucket)
		return
	}
}

// findAgain looks up the part's bucket again, because it was evicted or its policy has changed. It reports whether the
// new policy decides the part without a limit.
func (p *Part) findAgain(s local.Source) bool {
	p.setSource(p.find(p.bucket.ID()), s)
	return p.decideByRule()
}

// decideByRule decides the part if no limit does.
func (p *Part) decideByRule() bool {
	refresh := p.Limiter.refreshes.Load()
	if p.limit != nil && p.exceedsCarried() {
		return true
	}
	b := p.bucket
	if o, decided := p.Taking.decideByRule(p.now); decided {
		p.decided(o, b)
		return true
	}
	p.known, p.refresh = p.bucket.Policy(), refresh
	return false
}

// decideByRule decides if no limit applies, or if the limit can never admit so many tokens. It reports false if the
// limit decides.
func (t *Taking) decideByRule(now time.Duration) (o Outcome, decided bool) {
	b := t.bucket
	p := b.Policy()
	for ; p.Rule == local.Unresolved; p = b.Policy() {
		b.Limiter().resolve(b, t.Key)
	}
	switch {
	case p.Rule == local.Unlimited:
		t.Limiter.AdmittedUnlimited.Add(t.Cost)
	case p.Rule == local.Blocked:
		b.CountRefused(t.Cost)
	case t.Cost <= p.Cap:
		return o, false
	}
	t.clear()
	return b.byRule(now), true
}

// recall gives a bucket that another part of the request has evicted, and that was made anew, the limit that PerKey gave
// its key a moment ago. Otherwise the parts of a request over more keys than MaxKeys would evict each other for ever.
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
func (p *Part) answer(r Reason, t Tier, left int64, retry time.Duration) {
	o := p.bucket.share().tell(Outcome{p.bucket.Policy(), How{r, t, false}, left, retry}, p.now, p.Cost)
	if r == Granted && t == Remote && p.Limiter.mode.Load()&ModeStanding != 0 {
		p.Limiter.Standing.fade()
	}
	p.decided(o, p.bucket)
}

// decided stores how the part was decided, and counts that. b is the bucket that it was decided by, nil if there is none. In
// shadow mode a refusal admits.
func (p *Part) decided(o Outcome, b *Bucket) {
	// A call that waits does not count here when it is refused and asks again, nor when it gives up: see countEnd.
	if !p.asksAgain() || o.Reason != Limited && o.Reason != Canceled {
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

// State returns how the part was decided, or what it would have been if another part had not refused. back says that the request
// was refused, and that what the part took goes back.
func (p *Part) State(back bool) Told {
	t := p.Told()
	switch {
	case p.Limiter == nil, p.state == refused:
	case p.state == taken:
		if back && p.bucket != nil {
			t.Left += p.Cost
		}
	default:
		t.Outcome, t.Bucket = p.Limiter.invalid(p.Key, Unknown)
	}
	return t
}

// uncount undoes the count of a part that was admitted, because another part refused.
func (p *Part) uncount() {
	l := p.Limiter
	switch k := p.kind(); k {
	case report.Shadowed: // it counted as refused
	case report.Fallback, report.Open: // these tokens stay counted
		l.Requests.Add(p.Key, k, 2, 1)
	case report.Unlimited:
		l.AdmittedUnlimited.Add(-p.Cost)
		fallthrough
	default:
		l.Requests.Add(p.Key, k, p.Cost, -1)
	}
	if k, ok := p.byRedis(); ok {
		l.Requests.Add(p.Key, k, p.Cost, -1)
	}
}

func (p *Part) shadow() bool { return p.Limiter.mode.Load()&ModeShadow != 0 }

// asksForOthers reports whether the part is for the first caller in a queue, which asks for those behind it too.
func (p *Part) asksForOthers() bool {
	return p.asksAgain() && !p.caller.several
}

// yield lets everything else that happens at this instant happen first, in a simulation: other requests may have waited
// for the same answer. No two requests begin to wait at one instant, so until gives them an order.
func (p *Part) yield() { p.Limiter.Group.Yield(uint64(p.until)) }

// find returns a bucket of the part's key. If the request carries a limit, the key has at least that from now on.
func (p *Part) find(id local.ID) *Bucket {
	b := p.Limiter.Group.find(p.now, id)
	if p.limit != nil {
		b.adopt(p.now, p.limit)
	} else {
		b.adoptLast(p.now)
	}
	return b
}

// exceedsCarried refuses the part if the burst of the limit that its request carries is too small. Else it sees to it that the
// key has the limit, which other requests may have changed meanwhile.
func (p *Part) exceedsCarried() bool {
	limit := p.limit.Limits[0]
	if b := p.bucket.Policy(); b.Rule != limit.Rule() || limit.Rule() == local.ByLimit && p.Cost > b.Cap {
		p.setSource(p.find(p.bucket.ID()), local.FromLease)
	}
	if limit.Rule() != local.ByLimit || p.Cost <= limit.Most() {
		return false
	}
	b := p.bucket
	p.clear()
	p.decided(b.refuseForGood(p.now, ExceedsBurst), b)
	return true
}
