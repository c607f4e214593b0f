package tiered

import (
	"context"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
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

	outcome         // once it is taken or refused
	decider *bucket // whose bucket it was then; nil if none
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
		p.decided(l.invalid(p.key, r))
		return
	}
	if l.mode.Load()&modeUnlimited != 0 && p.limit == nil && !l.carries.Load() {
		l.admittedUnlimited.Add(p.cost)
		p.decided(outcome{l.settings.Load().initial, how{Granted, Local, false}, 0, 0}, nil)
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
		p.answer(Limited, Local, v.Left, v.Retry)
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
		by := p.bucket.Policy()
		v := p.bucket.ForeseeFallback(p.now, p.cost, p.limiter.group.fleetOf(p.bucket), true)
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
func (p *part) takeFromPot() bool {
	left, ok, renew := p.bucket.Take(p.now, p.cost)
	switch {
	case ok:
		p.renew = renew
	case p.takeFromShare():
		left = p.bucket.seenLeft(p.now)
	default:
		return false
	}
	p.answer(Granted, Local, left, 0)
	return true
}

// takeFromShare takes the part's tokens from its key's standing share.
func (p *part) takeFromShare() (ok bool) {
	if p.limiter.mode.Load()&modeStanding == 0 {
		return false
	}
	p.limiter.resolve(p.bucket, p.key)
	_, ok = p.bucket.share().take(p.now, p.cost, &p.standing)
	return ok
}

// shareHolds reports whether takeFromShare would find the tokens.
func (p *part) shareHolds() bool {
	if p.limiter.mode.Load()&modeStanding == 0 {
		return false
	}
	p.limiter.resolve(p.bucket, p.key)
	return p.bucket.share().holds(p.now, p.cost)
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
	p.limiter.requests.Waited(p.now - begin)
	p.leave(w, v, Remote)
	p.waiter = nil
	switch reason {
	case Canceled:
		p.decided(outcome{p.bucket.Policy(), how{Canceled, None, expired(ctx)}, 0, 0}, p.bucket)
	case Unavailable:
		if n := p.bucket.node.Load(); n != nil {
			healthOf(n).overruns.Count()
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
func (p *part) fallBack() {
	for {
		p.setSource(p.bucket, local.FromFallback)
		o, stamp, ok := p.bucket.fallBack(p.now, p.cost)
		if !ok {
			if p.findAgain(local.FromFallback) {
				return
			}
			continue
		}
		if o.reason == Granted { // of the lease
			p.setSource(p.bucket, local.FromRedis)
			p.stamp = stamp
		}
		p.decided(p.bucket.share().tell(o, p.now, p.cost), p.bucket)
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
	if p.limit != nil && p.exceedsCarried() {
		return true
	}
	b := p.bucket
	if o, decided := p.taking.decideByRule(p.now); decided {
		p.decided(o, b)
		return true
	}
	p.known, p.refresh = p.bucket.Policy(), refresh
	return false
}

// decideByRule decides if no limit applies, or if the limit can never admit so many tokens. It reports false if the
// limit decides.
func (t *taking) decideByRule(now time.Duration) (o outcome, decided bool) {
	b := t.bucket
	p := b.Policy()
	for ; p.Rule == local.Unresolved; p = b.Policy() {
		b.limiter().resolve(b, t.key)
	}
	switch {
	case p.Rule == local.Unlimited:
		t.limiter.admittedUnlimited.Add(t.cost)
	case p.Rule == local.Blocked:
		b.CountRefused(t.cost)
	case t.cost <= p.Cap:
		return o, false
	}
	t.clear()
	return b.byRule(now), true
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

// answer decides the part by its bucket's limit.
func (p *part) answer(r Reason, t Tier, left int64, retry time.Duration) {
	o := p.bucket.share().tell(outcome{p.bucket.Policy(), how{r, t, false}, left, retry}, p.now, p.cost)
	if r == Granted && t == Remote && p.limiter.mode.Load()&modeStanding != 0 {
		p.limiter.standing.fade()
	}
	p.decided(o, p.bucket)
}

// decided stores how the part was decided, and counts that. b is the bucket that it was decided by, nil if there is none. In
// shadow mode a refusal admits.
func (p *part) decided(o outcome, b *bucket) {
	// A call that waits does not count here when it is refused and asks again, nor when it gives up: see countEnd.
	if !p.asksAgain() || o.reason != Limited && o.reason != Canceled {
		p.limiter.countRequest(o, p.key, p.cost)
	}
	if !o.allowed() && p.shadow() {
		o = p.limiter.tryOut(o, p.key, p.cost)
		p.clear()
	}
	p.outcome, p.decider, p.state = o, b, refused
	if o.allowed() {
		p.state = taken
	}
}

// write writes the part's Decision.
func (p *part) write(d *Decision) {
	if p.outcome.write(d, p.key, p.cost, p.decider, p.now); p.limit != nil {
		p.limit.tellCarried(d)
	}
}

// report writes the state of the part. back says that the request was refused, and that what the part took went back.
func (p *part) report(d *Decision, back bool) {
	switch {
	case p.limiter == nil, p.state == refused:
		p.write(d)
	case p.state == taken:
		as := *p // two uses may share the part
		if back && p.bucket != nil {
			as.left += p.cost
		}
		as.write(d)
	default:
		o, b := p.limiter.invalid(p.key, Unknown)
		o.write(d, p.key, p.cost, b, p.now)
	}
}

// uncount undoes the count of a part that was admitted, because another part refused.
func (p *part) uncount() {
	l := p.limiter
	switch k := p.kind(); k {
	case report.Shadowed: // it counted as refused
	case report.Fallback, report.Open: // these tokens stay counted
		l.requests.Add(p.key, k, 2, 1)
	case report.Unlimited:
		l.admittedUnlimited.Add(-p.cost)
		fallthrough
	default:
		l.requests.Add(p.key, k, p.cost, -1)
	}
	if k, ok := p.byRedis(); ok {
		l.requests.Add(p.key, k, p.cost, -1)
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
