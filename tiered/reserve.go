package tiered

import (
	"context"
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
)

// Reservation holds tokens that were taken and may be returned or corrected once: the first call of
// Cancel or Settle on any copy counts. A refused Reservation and the zero one hold nothing.
type Reservation struct {
	Decision
	held *held
}

// held is the state that all copies of a Reservation share.
type held struct {
	ended   atomic.Bool
	takings []engine.Tokens
	uses    []useCost // of a [Use]; nil means one for each taking

	one [1]engine.Tokens // room for takings
}

// useCost is the cost of one use. Two uses of one key share a taking.
type useCost struct {
	taking int
	cost   int64
}

// Reserve is ReserveN for one token: it never reserves the future.
func (l *Limiter) Reserve(ctx context.Context, key string) Reservation {
	return l.ReserveN(ctx, key, 1)
}

// ReserveN takes n tokens now, as [Limiter.AllowN] does; it never reserves the future, as
// [Limiter.WaitN] would. Without Cancel or Settle they are spent.
func (l *Limiter) ReserveN(ctx context.Context, key string, n int64) (r Reservation) {
	if l.isZero() {
		return r
	}
	if l.core.Carries() { // as in allow
		return l.For(key).N(n).Reserve(ctx)
	}
	h := &held{one: [1]engine.Tokens{{Limiter: &l.core, Key: key, Cost: n}}}
	h.takings = h.one[:]
	o, b, now := l.core.Take(ctx, key, n, &h.one[0])
	t := l.core.Told(o, key, n, b, now)
	tell(&r.Decision, &t)
	r.held = h
	return r
}

// Reserve takes the tokens now, as Allow does, and never reserves the future.
func (u Use) Reserve(ctx context.Context) (r Reservation) { return u.ReserveEach(ctx, nil) }

// ReserveEach is [Use.Reserve], and writes the Decision of the i-th use given to [All] to each[i],
// as [Use.AllowEach] does.
func (u Use) ReserveEach(ctx context.Context, each []Decision) (r Reservation) {
	h := new(held)
	parts := u.request(make(engine.Request, 0, u.n))
	if p := parts.Decide(ctx); p != nil {
		t := p.Told()
		tell(&r.Decision, &t)
	}
	parts.End()
	h.takings, h.uses = make([]engine.Tokens, len(parts)), make([]useCost, u.n)
	for i := range parts {
		h.takings[i] = parts[i].Tokens
	}
	for i := range u.n {
		use := u.at(i)
		p, part := parts.Find(use.limiter.engine(), use.key)
		h.uses[use.place] = useCost{taking: part, cost: use.cost}
		if use.place < len(each) {
			t := p.State(parts.Refused())
			tell(&each[use.place], &t)
		}
	}
	r.held = h
	return r
}

// Cancel returns all tokens: to the lease if nothing was sent to Redis since they were taken, and
// otherwise to Redis, within 50 ms. What is lost on the way, or after Close, is burnt. It does not
// block, except that it calls Policy.PerKey if the process no longer keeps the key. What the
// fallback admitted does not go back to it, but lowers the debt that is not yet reported.
func (r Reservation) Cancel() {
	for i, ok := 0, r.end(); ok && i < len(r.held.takings); i++ {
		r.held.takings[i].Settle(0)
	}
}

// Settle corrects the cost to the actual one, of at least 0. Excess tokens are returned as by
// Cancel. Missing ones are charged as by [Use.Charge]: the bucket may go Policy.MaxDebt below zero,
// and the rest is forgiven. Several uses need one actual cost each, in the order given to All. One
// without keeps its cost, and surplus numbers are ignored.
func (r Reservation) Settle(actual ...int64) {
	if !r.end() {
		return
	}
	of := func(i int, cost int64) int64 {
		if i >= len(actual) {
			return cost
		}
		return min(max(actual[i], 0), 2*engine.MaxTokens) // more than can be charged, and far from an overflow
	}
	for i := range r.held.takings {
		t := &r.held.takings[i]
		if r.held.uses == nil {
			t.Settle(of(i, t.Cost))
			continue
		}
		total := int64(0)
		for place, s := range r.held.uses {
			if s.taking == i {
				total += of(place, s.cost)
			}
		}
		t.Settle(total)
	}
}

// end reports whether there is anything to correct. It reports true at most once.
func (r Reservation) end() bool {
	return r.Allowed && r.held != nil && r.held.ended.CompareAndSwap(false, true)
}
