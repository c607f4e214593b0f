package engine

import (
	"context"
	"errors"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Redis as a source: parts join the queues of their buckets, and wait for the answers. Meanwhile a
// sender of the node goes on with [Bucket.Compose], and with [Bucket.Finish] once Redis has
// answered.

// maxTries is how often a bucket is looked up again if it is evicted before it can be asked.
const maxTries = 8

// askRedis asks for all undecided parts at once. It waits for all answers, because the Decision
// names the part that refuses for longest.
func (r Request) askRedis(ctx context.Context) {
	for i := range r {
		if p := &r[i]; p.state == undecided && p.down() {
			p.leaveToFailMode()
		}
	}
	if r.has(undecided) {
		r.heed(ctx)
	}
	for try := 0; r.has(undecided); try++ {
		if try > 0 {
			r.lookUpAgain(try == maxTries)
		}
		r.join()
		if len(r) == 1 && r[0].carry(ctx) {
			continue
		}
		r.send()
		for i := range r {
			if p := &r[i]; p.state == waiting {
				p.wait(ctx)
			}
		}
	}
}

// lookUpAgain looks up the buckets of the parts that could not be asked about, unless it is the end
// or their time is over. It may call the user's PerKey, so it must not hold joinMu.
func (r Request) lookUpAgain(end bool) {
	for i := range r {
		switch p := &r[i]; {
		case p.state != undecided:
		case end || p.Limiter.Group.Now() >= p.until:
			p.state = leftToFailMode
		default:
			p.findAgain(lease)
		}
	}
}

// heed sets an earlier end of the wait if the deadline of ctx is near. Callers that ask again, as
// waits do, wait until the deadline itself.
func (r Request) heed(ctx context.Context) {
	left := patience(ctx, forever)
	for i := range r {
		if p := &r[i]; left < forever && p.state == undecided && !p.asksAgain() {
			p.until = min(p.until, p.Limiter.Group.Now()+left)
		}
	}
}

// wayBack is what a wait for Redis leaves of the time until a caller's deadline, or half of that
// time if it is less: an answer takes some ms to its caller where processors are short. With a
// quarter of the time, an Envoy that waits for 10 ms gave up one call in five while Redis was
// frozen, on two cores with a load of 15. With half of it, one in fifty.
const wayBack = 10 * time.Millisecond

// patience returns how long a caller waits for Redis: d, but less if the deadline of ctx is near.
// So the answer comes before the deadline, also if Redis does not answer. It is d if the deadline
// has passed: then ctx has ended.
func patience(ctx context.Context, d time.Duration) time.Duration {
	if ctx == nil {
		return d
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		return d
	}
	left := time.Until(deadline)
	if left <= 0 {
		return d
	}
	return min(d, left-min(left/2, wayBack))
}

// join puts the undecided parts into the queues of their buckets. Requests whose parts need each
// other join one after the other, so that the first in one queue is the first in all of them.
func (r Request) join() {
	if r[0].several {
		lines := &r[0].Limiter.Group.joinMu
		lines.Lock()
		defer lines.Unlock()
	}
	for i := range r {
		if p := &r[i]; p.state == undecided {
			p.join()
		}
	}
}

// send sends the calls that the parts need.
func (r Request) send() {
	var room [InlineParts]dispatch.Routed
	calls := room[:0]
	for i := range r {
		if p := &r[i]; p.call.Node != nil {
			calls = append(calls, p.call)
			p.call = dispatch.Routed{}
		}
	}
	dispatch.Push(calls)
}

// join puts the part into its bucket's queue. The part stays undecided if the bucket was evicted or
// its policy has changed.
func (p *Part) join() {
	g := p.Limiter.Group
	w := g.waiter()
	w.AskAgain = p.asksAgain()
	if n := p.bucket.node.Load(); n != nil {
		w.Well = n.IsWell()
	}
	if p.asksForOthers() {
		w.More = g.queues.askForOthers(p.caller, p.bucket.Policy().Cap)
	}
	o, effect := p.bucket.Ask(p.now, p.Cost, p.until, w.Waiter)
	if o.Reason == local.Outdated { // perhaps another part's bucket has evicted it
		p.setSource(p.find(p.bucket.ID()), lease)
		p.recall()
		if p.bucket.Policy().Rule == local.ByLimit {
			o, effect = p.bucket.Ask(p.now, p.Cost, p.until, w.Waiter)
		}
	}
	if effect.Send { // with those of the other parts: see Request.send
		p.call = p.bucket.route()
		effect.Send = false
	}
	p.bucket.apply(p.now, effect)
	if o.Reason == local.Waiting {
		p.state, p.waiter = waiting, w
		p.setSource(p.bucket, redis)
		return
	}
	p.end(w, o)
}

// wait waits for the answer.
func (p *Part) wait(ctx context.Context) {
	begin := p.Limiter.Group.Now()
	o, answered := p.waiter.wait(ctx, p.until-begin, p.bucket)
	p.waited(ctx, begin, o, answered)
}

// carry has the caller make the part's call itself, and wait for the answer. It reports false if a
// sender has to make the call. A renewal is such a call, because the part does not wait for it. A
// caller whose context or time ends meanwhile leaves before the answer is delivered, as a caller
// that waits does.
func (p *Part) carry(ctx context.Context) bool {
	g := p.Limiter.Group
	if p.state != waiting || p.call.Node == nil || p.asksAgain() || p.until < p.now+g.Budget || hasEnded(ctx) {
		return false
	}
	begin := g.Now()
	c, ok := p.call.Node.Carry(p.call.Pending, g.Budget)
	if !ok {
		return false
	}
	p.call = dispatch.Routed{}
	var o local.Outcome
	switch {
	case hasEnded(ctx):
		o.Reason = local.Canceled
	case g.Now() >= p.until:
		o.Reason = local.Unavailable
	}
	left := o.Reason != 0 && p.bucket.Leave(p.waiter.Waiter)
	c.Deliver()
	answered := false
	if !left {
		o, answered = p.waiter.wait(ctx, p.until-g.Now(), p.bucket)
	}
	p.waited(ctx, begin, o, answered)
	return true
}

// waited ends a wait that began at begin, with the answer, or with the reason why there is none.
func (p *Part) waited(ctx context.Context, begin time.Duration, o local.Outcome, answered bool) {
	g := p.Limiter.Group
	w, asked := p.waiter, p.now
	if p.several {
		p.yield()
	}
	p.now = g.Now()
	p.Limiter.Requests.Waited(p.now - begin)
	p.waiter = nil
	switch {
	case answered:
		if p.asksForOthers() {
			p.caller.active = w.Active
		}
		p.end(w, o)
		return
	case o.Reason == local.Canceled:
		p.decided(canceled(ctx, p.bucket.Policy()), p.bucket)
	default:
		if n := p.bucket.node.Load(); n != nil {
			nodeOf(n).Overran(p.until-asked, p.now-p.until) // not since begin: the parts before this one waited too
		}
		p.state = leftToFailMode
	}
	g.waiters.Put(w)
}

// canceled returns the outcome of a request whose context has ended.
func canceled(ctx context.Context, p *local.Policy) local.Outcome {
	o := local.Decided(p, local.Canceled, local.Nowhere, 0, 0)
	o.Expired = errors.Is(ctx.Err(), context.DeadlineExceeded)
	return o
}

// end decides the part by what its bucket answered w, or leaves it to the fail mode. It is
// undecided again if the bucket was evicted, or its policy has changed.
func (p *Part) end(w *waiter, o local.Outcome) {
	switch o.Reason {
	case local.Granted:
		if p.stamp = w.Stamp; p.asksForOthers() {
			p.caller.more, p.caller.short = w.MoreGranted, w.Short
		}
		p.answer(o)
	case local.Limited:
		p.answer(o)
	case local.Unavailable:
		if !p.several {
			p.yield()
		}
		p.state = leftToFailMode
	case local.Outdated:
		p.state = undecided
	}
	p.Limiter.Group.waiters.Put(w)
}

// asksForOthers reports whether the part is for the first caller in a queue, which asks for those
// behind it too.
func (p *Part) asksForOthers() bool {
	return p.asksAgain() && !p.caller.several
}
