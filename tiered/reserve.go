package tiered

import (
	"context"
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// Reservation is tokens that were taken, and that may be given back or corrected: once, by the first of Cancel and
// Settle. A Reservation that was refused, and the zero Reservation, hold nothing. Copies are the same Reservation.
type Reservation struct {
	Decision
	held *held
}

// held is what a Reservation holds.
type held struct {
	ended   atomic.Bool
	takings []taking
	uses    []useCost // of [Uses]; nil means one for each taking

	one [1]taking // room for takings
}

// settling is one use's part of what was taken: two uses of one key share a taking.
type useCost struct {
	taking int
	cost   int64
}

// taking is tokens of one key, and where they were taken from.
type taking struct {
	limiter  *Limiter
	key      string
	cost     int64
	bucket   *bucket // nil: nothing was taken, there was no limit or it was not in force
	source   local.Source
	gen      int64         // of the pot, before they were taken
	leaseGen int64         // of the Group, before they were taken
	stamp    *local.Stamp  // what they were counted by, or earlier
	caller   *queuedCaller // who asks for them, if that is somebody who waits and asks again
}

// from notes where the tokens come from, before they are taken.
func (t *taking) setSource(b *bucket, s local.Source) {
	if t.bucket != b {
		t.bucket, t.gen, t.leaseGen, t.stamp = b, b.Generation(), t.limiter.group.leaseGen.Load(), b.LastStamp()
	}
	t.source = s
}

// asksAgain reports whether the tokens are for somebody who waits and asks again.
func (t *taking) asksAgain() bool { return t.caller != nil }

// nothing says that nothing was taken.
func (t *taking) clear() { t.bucket = nil }

// counted notes what the tokens that v admits were counted by.
func (t *taking) counted(v local.Verdict) { t.stamp = v.Stamp }

// Reserve takes n tokens now, or refuses, as [Limiter.AllowN] does; never a future token. Give back with Cancel what was
// not used, or correct the cost with Settle when it is known.
func (l *Limiter) Reserve(ctx context.Context, key string, n int64) (r Reservation) {
	h := &held{one: [1]taking{{limiter: l, key: key, cost: n}}}
	h.takings = h.one[:]
	l.take(ctx, key, n, &h.one[0], &r.Decision)
	r.held = h
	return r
}

// Cancel gives all tokens back: to the lease if nothing was sent to Redis since, else to Redis, within 50 ms. It neither
// blocks nor fails, but that [Policy].PerKey is asked again where the process has forgotten the key; what is lost on the way
// is burnt, and so is all after Close. Of what the share admitted while Redis did not answer, only the debt is
// taken back: the share has paid.
func (r Reservation) Cancel() {
	for i, ok := 0, r.end(); ok && i < len(r.held.takings); i++ {
		r.held.takings[i].correctCost(0)
	}
}

// Settle corrects the cost to what it turned out to be. What was too much goes back as by Cancel. What was too little is
// charged to the bucket, at most one burst of it, even below zero: the next requests wait for it. A negative actual
// counts as 0.
//
// Of a Reservation by [Uses.Reserve] there is one actual cost for each use, in the order that [Strictest] was given. Uses
// without one cost what was taken; numbers without a use mean nothing.
func (r Reservation) Settle(actual ...int64) {
	if !r.end() {
		return
	}
	of := func(i int, cost int64) int64 {
		if i >= len(actual) {
			return cost
		}
		return min(max(actual[i], 0), 2*maxTokens) // more than can be charged, and far from an overflow
	}
	for i := range r.held.takings {
		t := &r.held.takings[i]
		if r.held.uses == nil {
			t.correctCost(of(i, t.cost))
			continue
		}
		total := int64(0)
		for place, s := range r.held.uses {
			if s.taking == i {
				total += of(place, s.cost)
			}
		}
		t.correctCost(total)
	}
}

// end reports whether there is anything to settle, once.
func (r Reservation) end() bool {
	return r.Allowed && r.held != nil && r.held.ended.CompareAndSwap(false, true)
}

// settle makes of what was taken what it did cost.
func (t *taking) correctCost(actual int64) {
	excess := t.cost - actual
	if t.bucket == nil || excess == 0 {
		return
	}
	g := t.limiter.group
	now, b := g.now(), t.bucket
	for late := false; ; late = true { // evicted and forgotten since: its key has another bucket
		var e local.Effect
		var ok bool
		switch {
		case excess < 0:
			e, ok = b.Charge(now, -excess)
		case !late:
			e, ok = b.Return(now, excess, t.source, t.gen, t.stamp)
		case g.closed.Load(), t.leaseGen != g.leaseGen.Load(): // nothing is sent any more; or a twin of this process may give it back
			t.limiter.keepStats(b.key(), local.Stats{Spent: -excess, Burnt: excess})
			return
		default:
			e, ok = b.Return(now, excess, local.FromRedis, b.Generation(), t.stamp)
		}
		if ok {
			b.apply(now, e)
			return
		}
		numbers := b.Policy()
		b = g.find(now, b.ID())
		b.limiter().resolve(b, t.key)
		b.Inherit(numbers)
	}
}

// Do calls fn if the limit admits one token for key, and gives the token back as [Reservation.Cancel] does if fn fails or
// panics: only successes count. It returns fn's error, or a *[LimitedError] without calling fn.
func (l *Limiter) Do(ctx context.Context, key string, fn func(context.Context) error) error {
	r := l.Reserve(ctx, key, 1)
	if !r.Allowed {
		return r.Err()
	}
	succeeded := false
	defer func() {
		if !succeeded {
			r.Cancel()
		}
	}()
	err := fn(ctx)
	succeeded = err == nil
	return err
}
