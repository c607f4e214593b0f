package engine

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Taking is tokens of one key, and where they were taken from.
type Taking struct {
	Limiter  *Limiter
	Key      string
	Cost     int64
	bucket   *Bucket // nil if nothing was taken, because there was no limit or it was not in force
	source   local.Source
	gen      int64         // of the pot, before the tokens were taken
	leaseGen int64         // of the Group, before the tokens were taken
	stamp    *local.Stamp  // when they were counted, or earlier
	standing standing.Use  // what a standing share admitted; then it is from there
	caller   *queuedCaller // nil unless the tokens are for a caller that waits and asks again
}

// setSource stores where the tokens come from, before they are taken.
func (t *Taking) setSource(b *Bucket, s local.Source) {
	if t.bucket != b {
		t.bucket, t.gen, t.leaseGen, t.stamp = b, b.Generation(), t.Limiter.Group.leaseGen.Load(), b.LastStamp()
	}
	t.source = s
}

// asksAgain reports whether the tokens are for a caller that waits and asks again.
func (t *Taking) asksAgain() bool { return t.caller != nil }

// clear stores that nothing was taken.
func (t *Taking) clear() { t.bucket = nil }

// Settle corrects the cost of an admitted request to actual.
func (t *Taking) Settle(actual int64) {
	if back := t.Cost - actual; back > 0 && t.source != local.FromFallback && (t.bucket != nil || !t.standing.Empty()) {
		t.Limiter.Refunded.Add(back)
	}
	t.correctCost(actual)
}

// correctCost corrects the cost to actual.
func (t *Taking) correctCost(actual int64) {
	excess := t.Cost - actual
	fromShare := !t.standing.Empty()
	if t.bucket == nil && !fromShare || excess == 0 || fromShare && excess > 0 && t.share().putBack(t.standing, excess) {
		return
	}
	g := t.Limiter.Group
	if fromShare { // the share was used since, or more is to be paid: Redis is told
		t.setSource(t.keyBucket(g.Now()), local.FromRedis)
		t.countAsGranted(excess)
	}
	now, b := g.Now(), t.bucket
	if excess < 0 {
		missing := -excess
		missing -= b.share().charge(now, missing)
		t.Limiter.charge(now, b, t.Key, missing)
		return
	}
	for late := false; ; late = true { // if the bucket was evicted meanwhile, its key has another one
		var e local.Effect
		var ok bool
		switch {
		case !late:
			e, ok = b.Return(now, excess, t.source, t.gen, t.stamp)
		case g.Closed.Load(), t.leaseGen != g.leaseGen.Load():
			// Nothing is sent any more, or a copy of this process may return the tokens.
			t.Limiter.keepStats(b.Key(), local.Stats{Spent: -excess, Burnt: excess})
			return
		default:
			e, ok = b.Return(now, excess, local.FromRedis, b.Generation(), t.stamp)
		}
		if ok {
			b.apply(now, e)
			return
		}
		b = b.successor(now, t.Key)
	}
}

// share returns the standing share that the tokens are from.
func (t *Taking) share() share {
	l := t.Limiter
	return share{limiter: l, hash: l.Group.Cache.Hash(l.ID(t.Key))}
}

// countAsGranted counts n tokens of a share that are on their way to Redis as if Redis had granted them. They return
// there.
func (t *Taking) countAsGranted(n int64) {
	if n > 0 {
		t.Limiter.Standing.count(t.share().hash, -n)
		t.Limiter.keepStats(t.bucket.Key(), local.Stats{Granted: n, Spent: n})
	}
}

// keyBucket returns the bucket of the key.
func (t *Taking) keyBucket(now time.Duration) *Bucket {
	l := t.Limiter
	b := l.Group.find(now, l.ID(t.Key))
	l.resolve(b, t.Key)
	return b
}

// successor returns the bucket that b's key has since b was evicted, with the numbers by which b counted.
func (b *Bucket) successor(now time.Duration, key string) *Bucket {
	next := b.Limiter().Group.find(now, b.ID())
	next.Limiter().resolve(next, key)
	next.Inherit(b.Policy())
	return next
}

// charge takes n more tokens from a bucket. If the bucket was evicted meanwhile, it takes them from its successor.
func (l *Limiter) charge(now time.Duration, b *Bucket, key string, n int64) {
	for {
		e, taken, forgiven, ok := b.Charge(now, n)
		if ok {
			l.Charged.Add(n - taken)
			if taken > 0 {
				l.Requests.Add(key, report.Granted, taken+1, 1) // a part of a request that is counted already
			}
			if forgiven > 0 {
				l.forgive(forgiven)
			}
			b.apply(now, e)
			return
		}
		b = b.successor(now, key)
	}
}

// takeShare takes n tokens from the standing share of a key, and stores that in t, unless t is nil. b is the key's bucket, or
// nil.
func (l *Limiter) takeShare(now time.Duration, b *Bucket, id local.ID, n int64, t *Taking) (o Outcome, ok bool) {
	p := l.settings.Load().Initial
	var u *standing.Use
	if t != nil {
		u = &t.standing
	}
	if b != nil {
		p = b.Policy()
	}
	level, ok := l.share(id, p).take(now, n, u)
	if !ok {
		return o, false
	}
	left := p.Cap // what nobody of this process asked Redis about may be full
	if b != nil {
		left = b.seenLeft(now)
	}
	return Outcome{p, How{Granted, Local, false}, left + level, 0}, true
}
