package engine

import (
	"context"
	"math"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Need appends a part. A nil Limiter refuses it. Two parts for one key of one Limiter become one
// with the sum of their costs, and the larger of their limits. limit is what the request carries
// for the key, or nil.
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
	return append(r, Part{Tokens: Tokens{Limiter: l, Key: key, Cost: cost}, limit: limit})
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

// Refuse returns the refusal of a request for n tokens that is not valid, and counts it.
func (l *Limiter) Refuse(key string, n int64, r local.Reason) Told {
	o, b := l.invalid(key, r)
	l.countRequest(o, key, 0)
	t := Told{Outcome: l.tryOut(o, key, 0), Key: key, Cost: n, Bucket: b, Now: l.Group.Now()}
	l.observe(&t)
	return t
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

// Decide decides over all parts. It returns the strictest part, whose outcome is that of the
// request. If there are no parts, it returns nil. [Request.End] has to follow.
func (r Request) Decide(ctx context.Context) (strictest *Part) {
	if len(r) == 0 {
		return nil
	}
	r.begin()
	for i := range r {
		p := &r[i]
		if p.enter(); p.several {
			p.refuseKnown()
		}
	}
	r.walk(ctx)
	return r.finish()
}

// DecideSeparately decides over each part alone. All wait for Redis at the same time. End must not
// follow.
func (r Request) DecideSeparately(ctx context.Context) {
	for i := range r {
		alone := r[i : i+1]
		alone.begin()
		alone[0].enter()
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

// finish returns the strictest part, and tells the hook.
func (r Request) finish() *Part {
	p := r.strictest(r.Refused())
	if l := p.Limiter; l != nil && l.mode.Load()&ModeTraced != 0 && !(p.asksAgain() && p.WaitHelps()) {
		t := p.Told()
		l.Group.Hooks.Decision(&t)
	}
	return p
}

// Refused reports whether a part refused, so that what the others took goes back.
func (r Request) Refused() bool { return r.has(refused) }

// End puts back what was taken if a part refused. Otherwise it starts the renewals that are due,
// and not before, because tokens that a renewal has reported cannot be put back into the pot.
func (r Request) End() {
	back := r.Refused()
	for i := range r {
		p := &r[i]
		if back && p.state == taken {
			p.uncount()
		}
		switch {
		case back && p.state == taken:
			p.correctCost(0)
		case p.renew:
			p.bucket.apply(p.now, p.bucket.Renew(p.now))
		}
	}
}

// uncount undoes the count of a part that was admitted, because another part refused.
func (p *Part) uncount() {
	l := p.Limiter
	switch k := kindOf(p.Outcome); k {
	case report.Shadowed: // it counted as refused
	case report.Fallback, report.Open: // these tokens stay counted, for one request less
		l.Requests.Add(p.Key, k, 2, 1)
	case report.Unlimited:
		l.AdmittedUnlimited.Add(-p.Cost)
		fallthrough
	default:
		l.Requests.Add(p.Key, k, p.Cost, -1)
	}
	if k, ok := redisKindOf(p.Outcome); ok {
		l.Requests.Add(p.Key, k, p.Cost, -1)
	}
}

// strictest returns the part whose Decision counts for the request: the refusing part for which
// waiting helps least, or if none refuses, the part that admits the fewest more such requests. A
// wait sleeps by that part too.
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
	case local.Limited:
		return 0
	case local.FallbackSpent:
		if p.Retry > 0 {
			return 0
		}
		return 1
	case local.Unavailable:
		return 1
	case local.ExceedsBurst:
		return 2
	case local.Canceled:
		return 3
	}
	return 4
}

// admitsMore returns how many more such requests the part would admit, as far as this process
// knows.
func (p *Part) admitsMore() float64 {
	if p.shadow() || p.Policy.Rule == local.Unlimited {
		return math.Inf(1) // it does not limit the caller
	}
	left := p.Left
	if p.limit != nil {
		left = min(left, p.limit.Most())
	}
	return float64(left) / float64(p.Cost)
}
