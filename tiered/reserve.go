package tiered

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Reservation holds tokens that were taken and may be returned or corrected, once: the first call of Cancel or Settle
// counts. A refused Reservation and the zero Reservation hold nothing. Copies are the same Reservation.
type Reservation struct {
	Decision
	held *held
}

// held is the state that all copies of a Reservation share.
type held struct {
	ended   atomic.Bool
	takings []taking
	uses    []useCost // of [Uses]; nil means one for each taking

	one [1]taking // room for takings
}

// useCost is the cost of one use. Two uses of one key share a taking.
type useCost struct {
	taking int
	cost   int64
}

// taking is tokens of one key, and where they were taken from.
type taking struct {
	limiter  *Limiter
	key      string
	cost     int64
	bucket   *bucket // nil if nothing was taken, because there was no limit or it was not in force
	source   local.Source
	gen      int64         // of the pot, before the tokens were taken
	leaseGen int64         // of the Group, before the tokens were taken
	stamp    *local.Stamp  // when they were counted, or earlier
	standing standing.Use  // what a standing share admitted; then it is from there
	caller   *queuedCaller // nil unless the tokens are for a caller that waits and asks again
}

// setSource stores where the tokens come from, before they are taken.
func (t *taking) setSource(b *bucket, s local.Source) {
	if t.bucket != b {
		t.bucket, t.gen, t.leaseGen, t.stamp = b, b.Generation(), t.limiter.group.leaseGen.Load(), b.LastStamp()
	}
	t.source = s
}

// asksAgain reports whether the tokens are for a caller that waits and asks again.
func (t *taking) asksAgain() bool { return t.caller != nil }

// clear stores that nothing was taken.
func (t *taking) clear() { t.bucket = nil }

// Reserve takes one token now, and never reserves the future: it is [Limiter.ReserveN] for one token.
func (l *Limiter) Reserve(ctx context.Context, key string) Reservation {
	return l.ReserveN(ctx, key, 1)
}

// ReserveN takes n tokens now or refuses as [Limiter.AllowN] does, and never reserves the future. To wait for tokens
// use [Limiter.WaitN]. If the tokens were not used, call Cancel, which returns all of them. If the cost turned out
// different, call Settle. If you call neither, they are spent.
func (l *Limiter) ReserveN(ctx context.Context, key string, n int64) (r Reservation) {
	h := &held{one: [1]taking{{limiter: l, key: key, cost: n}}}
	h.takings = h.one[:]
	o, b, now := l.take(ctx, key, n, &h.one[0])
	o.write(&r.Decision, key, n, b, now)
	r.held = h
	return r
}

// Cancel returns all tokens: to the lease if nothing was sent to Redis since they were taken, and otherwise to Redis,
// within 50 ms. It does not block, except that it calls [Policy].PerKey if the process no longer keeps the key. Tokens
// that are lost on the way are burnt, and so are all tokens after Close. If the fallback admitted the request while Redis
// did not answer, Cancel lowers the debt that Redis has not heard of yet, but returns nothing to the fallback.
func (r Reservation) Cancel() {
	for i, ok := 0, r.end(); ok && i < len(r.held.takings); i++ {
		r.held.takings[i].settle(0)
	}
}

// Settle corrects the cost to the actual one. Excess tokens are returned as by Cancel. Missing tokens are charged to
// the bucket, which may go [Policy].MaxDebt below zero. The rest is forgiven. Below zero the next requests are refused
// until the refill has paid. A negative actual counts as 0.
//
// What is missing is charged as by [Limiter.Charge], with the same delay: Redis hears of it within 50 ms, or when it answers
// again, and other processes when they ask Redis next.
//
// A Reservation by [Uses.Reserve] takes one actual cost for each use, in the order that was given to [All]. A use
// without one keeps its cost, and surplus numbers are ignored.
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
			t.settle(of(i, t.cost))
			continue
		}
		total := int64(0)
		for place, s := range r.held.uses {
			if s.taking == i {
				total += of(place, s.cost)
			}
		}
		t.settle(total)
	}
}

// settle corrects the cost of an admitted request to actual.
func (t *taking) settle(actual int64) {
	if back := t.cost - actual; back > 0 && t.source != local.FromFallback && (t.bucket != nil || !t.standing.Empty()) {
		t.limiter.refunded.Add(back)
	}
	t.correctCost(actual)
}

// end reports whether there is anything to correct. It reports true at most once.
func (r Reservation) end() bool {
	return r.Allowed && r.held != nil && r.held.ended.CompareAndSwap(false, true)
}

// correctCost corrects the cost to actual.
func (t *taking) correctCost(actual int64) {
	excess := t.cost - actual
	fromShare := !t.standing.Empty()
	if t.bucket == nil && !fromShare || excess == 0 || fromShare && excess > 0 && t.share().putBack(t.standing, excess) {
		return
	}
	g := t.limiter.group
	if fromShare { // the share was used since, or more is to be paid: Redis is told
		t.setSource(t.keyBucket(g.now()), local.FromRedis)
		t.countAsGranted(excess)
	}
	now, b := g.now(), t.bucket
	if excess < 0 {
		missing := -excess
		missing -= b.share().charge(now, missing)
		t.limiter.charge(now, b, t.key, missing)
		return
	}
	for late := false; ; late = true { // if the bucket was evicted meanwhile, its key has another one
		var e local.Effect
		var ok bool
		switch {
		case !late:
			e, ok = b.Return(now, excess, t.source, t.gen, t.stamp)
		case g.closed.Load(), t.leaseGen != g.leaseGen.Load():
			// Nothing is sent any more, or a copy of this process may return the tokens.
			t.limiter.keepStats(b.key(), local.Stats{Spent: -excess, Burnt: excess})
			return
		default:
			e, ok = b.Return(now, excess, local.FromRedis, b.Generation(), t.stamp)
		}
		if ok {
			b.apply(now, e)
			return
		}
		b = b.successor(now, t.key)
	}
}

// share returns the standing share that the tokens are from.
func (t *taking) share() share {
	l := t.limiter
	return share{limiter: l, hash: l.group.cache.Hash(l.id(t.key))}
}

// countAsGranted counts n tokens of a share that are on their way to Redis as if Redis had granted them. They return
// there.
func (t *taking) countAsGranted(n int64) {
	if n > 0 {
		t.limiter.standing.count(t.share().hash, -n)
		t.limiter.keepStats(t.bucket.key(), local.Stats{Granted: n, Spent: n})
	}
}

// keyBucket returns the bucket of the key.
func (t *taking) keyBucket(now time.Duration) *bucket {
	l := t.limiter
	b := l.group.find(now, l.id(t.key))
	l.resolve(b, t.key)
	return b
}

// Do calls fn if the limit admits one token for key. If fn returns an error or panics, Do returns the token as
// [Reservation.Cancel] does: only successes count. It returns fn's error, or a *[LimitedError] without calling fn. If fn
// is nil, it returns an error and takes nothing.
func (l *Limiter) Do(ctx context.Context, key string, fn func(context.Context) error) error {
	if fn == nil {
		return errors.New("tiered: fn is nil: must be a function")
	}
	r := l.ReserveN(ctx, key, 1)
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
