package engine

import (
	"context"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Request is what one caller asks for: tokens of one key, or of several keys, all or nothing.
type Request []Part

// InlineParts is how many parts are decided without an allocation: a user, an address, a token and a tenant.
const InlineParts = 4

// Need appends a part. A nil Limiter refuses it. Two parts for one key of one Limiter become one with the sum of their costs, and
// the larger of their limits. limit is what the request carries for the key, or nil.
func (r Request) Need(l *Limiter, key string, cost int64, limit *Resolved) Request {
	for i := len(r) - 1; i >= 0 && r[i].Key == key; i-- {
		if p := &r[i]; p.Limiter == l {
			p.Cost = sum(p.Cost, cost)
			p.limit = larger(p.limit, limit)
			return r
		}
	}
	return r.NeedAlone(l, key, cost, limit)
}

// NeedAlone appends a part that stays one of its own, for [Request.DecideSeparately].
func (r Request) NeedAlone(l *Limiter, key string, cost int64, limit *Resolved) Request {
	return append(r, Part{Taking: Taking{Limiter: l, Key: key, Cost: cost}, limit: limit})
}

// sum adds two costs. If one of them is not valid, neither is the result.
func sum(a, b int64) int64 {
	if a <= 0 || b <= 0 {
		return min(a, b)
	}
	if a > MaxTokens || b > MaxTokens {
		return max(a, b)
	}
	return a + b
}

// Find returns the part of a key, and its index.
func (r Request) Find(l *Limiter, key string) (*Part, int) {
	for i := range r {
		if p := &r[i]; p.Limiter == l && p.Key == key {
			return p, i
		}
	}
	return nil, -1
}

// Decide decides over all parts. It returns the strictest part, whose outcome is that of the request. If there are no parts, it
// returns nil. [Request.End] has to follow.
func (r Request) Decide(ctx context.Context) (strictest *Part) {
	if len(r) == 0 {
		return nil
	}
	r.begin()
	for i := range r {
		r[i].decideKnown()
	}
	return r.decideRest(ctx)
}

// DecideSeparately decides over each part by itself. All wait for Redis at the same time. End must not follow.
func (r Request) DecideSeparately(ctx context.Context) {
	for i := range r {
		alone := r[i : i+1]
		alone.begin()
		alone[0].decideKnown()
	}
	r.walk(ctx)
	for i := range r {
		alone := r[i : i+1]
		alone.finish()
		alone.End()
	}
}

// begin sets until when the caller waits. The shortest Budget counts.
func (r Request) begin() {
	budget := forever
	for i := range r {
		if l := r[i].Limiter; l != nil {
			budget = min(budget, l.Group.Budget)
		}
	}
	for i := range r {
		p := &r[i]
		switch p.several = len(r) > 1; {
		case p.Limiter == nil:
			continue
		case i > 0 && r[i-1].Limiter != nil && r[i-1].Limiter.Group == p.Limiter.Group:
			p.now = r[i-1].now
		default:
			p.now = p.Limiter.Group.Now()
		}
		p.until = p.now + budget
	}
}

// decideRest decides the parts that decideKnown has not decided.
func (r Request) decideRest(ctx context.Context) (strictest *Part) {
	r.walk(ctx)
	return r.finish()
}

// walk decides the parts that decideKnown has not decided. For a part that is alone it looks into the pots once more, because
// a renewal may have come meanwhile.
//
// The order keeps small what has to be returned if a later part refuses. Known refusals come before anything is taken.
// Pots are next, because tokens can be put back into them. Redis is next, for all keys at once. Fail modes are last,
// because nothing can be put back into a fallback.
func (r Request) walk(ctx context.Context) {
	for r.pending() {
		for i := range r {
			if p := &r[i]; p.state == undecided {
				p.takeFromPot()
			}
		}
		r.askRedis(ctx)
		r.fallBack()
	}
}

// finish returns the strictest part, and tells the hook.
func (r Request) finish() *Part {
	p := r.strictest(r.Refused())
	if l := p.Limiter; l != nil && l.mode.Load()&ModeTraced != 0 && !(p.asksAgain() && p.waitHelps()) {
		t := p.Told()
		l.Group.Hooks.Decision(&t)
	}
	return p
}

// Refused reports whether a part refused, so that what the others took goes back.
func (r Request) Refused() bool { return r.has(refused) }

// pending reports whether a part is still to be decided. None is if another part has refused that is decided with it.
func (r Request) pending() bool {
	pending := false
	for i := range r {
		switch p := &r[i]; p.state {
		case refused:
			if p.several {
				return false
			}
		case undecided, fallback:
			pending = true
		}
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

// maxTries is how often a bucket is looked up again if it is evicted before it can be asked.
const maxTries = 8

// askRedis asks for all undecided parts at once. It waits for all answers, because the Decision names the part that
// refuses for longest.
func (r Request) askRedis(ctx context.Context) {
	if r.has(undecided) {
		r.heed(ctx)
	}
	for r.has(undecided) {
		for i := range r { // this may call the user's PerKey, so it must not hold joinMu
			p := &r[i]
			if p.state != undecided {
				continue
			}
			switch {
			case p.tries == 0:
				p.decideByRule()
			case p.tries == maxTries, p.Limiter.Group.Now() >= p.until:
				p.state = fallback
			default:
				p.findAgain(local.FromLease)
			}
			p.tries++
		}
		r.join()
		r.send()
		for i := range r {
			if p := &r[i]; p.state == waiting {
				p.wait(ctx)
			}
		}
	}
}

// heed sets an earlier end of the wait if the deadline of ctx is near. Callers that ask again, as waits do,
// wait until the deadline itself.
func (r Request) heed(ctx context.Context) {
	left := patience(ctx, forever)
	for i := range r {
		if p := &r[i]; left < forever && p.state == undecided && !p.asksAgain() {
			p.until = min(p.until, p.Limiter.Group.Now()+left)
		}
	}
}

// wayBack is what a wait for Redis leaves of the time until a caller's deadline, or half of that time if it is less: an
// answer takes some ms to its caller where processors are short. With a quarter, an Envoy that waits for 10 ms gave up
// every fifth call of a frozen Redis, on two cores with a load of 15; with this, one of fifty.
const wayBack = 10 * time.Millisecond

// patience returns how long a caller waits for Redis: d, but less if the deadline of ctx is near. So the answer comes
// before the deadline, also if Redis does not answer. It is d if the deadline has passed: then ctx has ended.
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

// join puts the undecided parts into the queues of their buckets. Requests whose parts need each other join one after
// the other, so that the first in one queue is the first in all of them.
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

// fallBack lets the fail modes decide, once everything is taken that Redis decides. If there are several parts, it
// first checks that each fail mode would admit its part.
func (r Request) fallBack() {
	if !r.pending() {
		return
	}
	for i := range r {
		if p := &r[i]; p.several && p.state == fallback {
			p.foresee()
		}
	}
	for i := range r {
		if p := &r[i]; p.state == fallback && !(p.several && r.has(refused)) {
			p.fallBack()
		}
	}
}

// End returns what was taken if a part refused. Otherwise it starts the renewals that are due. They come last, because tokens
// that a renewal has reported cannot be put back into the pot.
func (r Request) End() {
	back := r.Refused()
	for i := range r {
		p := &r[i]
		if back && p.state == taken {
			p.uncount()
		}
		switch {
		case p.bucket == nil: // it took nothing
		case back && p.state == taken:
			p.correctCost(0)
		case !back && p.renew:
			p.bucket.apply(p.now, p.bucket.Renew(p.now))
		}
	}
}

// strictest returns the part whose Decision counts for the request: the refusing part for which waiting helps least, or
// if none refuses, the part that admits the fewest more such requests. A wait sleeps by that part too.
func (r Request) strictest(back bool) (strictest *Part) {
	for i := range r {
		p := &r[i]
		switch {
		case back && p.state != refused:
		case strictest == nil, back && p.refusesLonger(strictest), !back && p.admitsMore() < strictest.admitsMore():
			strictest = p
		}
	}
	return strictest
}

// refusesLonger reports whether waiting helps p less than q.
func (p *Part) refusesLonger(q *Part) bool {
	if mine, other := p.unavailability(), q.unavailability(); mine != other {
		return mine > other
	}
	return p.Retry > q.Retry
}

// unavailability ranks refusals by how little waiting helps; 0 means that waiting helps.
func (p *Part) unavailability() int {
	switch p.Reason {
	case Limited:
		return 0
	case FallbackSpent:
		if p.Retry > 0 {
			return 0
		}
		return 1
	case Unavailable:
		return 1
	case ExceedsBurst:
		return 2
	case Canceled:
		return 3
	}
	return 4
}

// admitsMore returns how many more such requests the part would admit, as far as this process knows.
func (p *Part) admitsMore() float64 {
	if p.shadow() || p.Policy.Rule == local.Unlimited {
		return math.Inf(1) // it does not limit the caller
	}
	left := p.Left
	if p.limit != nil {
		left = min(left, p.limit.Limits[0].Most())
	}
	return float64(left) / float64(p.Cost)
}
