package engine

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Tokens are those of one key that a request takes, and where they come from.
type Tokens struct {
	Limiter  *Limiter
	Key      string
	Cost     int64
	bucket   *Bucket       // the key's, before the tokens were taken; nil if there was none
	source   source        // where they come from, as far as the sources were asked
	gen      int64         // of the pot, before the tokens were taken
	leaseGen int64         // of the Group, before the tokens were taken
	stamp    *local.Stamp  // when they were counted, or earlier
	standing standing.Use  // what a standing share admitted
	caller   *queuedCaller // nil unless the tokens are for a caller that waits and asks again
}

// setSource stores where the tokens come from, before they are taken.
func (t *Tokens) setSource(b *Bucket, s source) {
	if t.bucket != b {
		t.bucket, t.gen, t.leaseGen, t.stamp = b, b.Generation(), t.Limiter.Group.leaseGen.Load(), b.Hot().LastStamp()
	}
	t.source = s
}

// asksAgain reports whether the tokens are for a caller that waits and asks again.
func (t *Tokens) asksAgain() bool { return t.caller != nil }

// clear notes that nothing was taken, so that nothing is put back.
func (t *Tokens) clear() { t.source = nowhere }

// Settle corrects the cost of an admitted request to actual.
func (t *Tokens) Settle(actual int64) {
	if back := t.Cost - actual; back > 0 && t.source != failMode && t.source != nowhere {
		t.Limiter.Refunded.Add(back)
	}
	t.correctCost(actual)
}

// correctCost corrects the cost to actual: what was too much goes back where it was taken from, and
// what was too little is charged.
func (t *Tokens) correctCost(actual int64) {
	switch excess := t.Cost - actual; {
	case excess > 0:
		t.source.putBack(t, excess)
	case excess < 0 && t.source != nowhere:
		t.charge(-excess)
	}
}

// putBack returns n of the tokens that a request took from the source. Those of a standing share go
// to Redis if the share was used since.
func (s source) putBack(t *Tokens, n int64) {
	switch s {
	case standingShare:
		if !t.share().putBack(t.Limiter.Group.Now(), t.standing, n) {
			t.moveToRedis(n)
			redis.putBack(t, n)
		}
	case lease:
		t.giveBack(local.FromLease, n)
	case redis:
		t.giveBack(local.FromRedis, n)
	case failMode:
		t.giveBack(local.FromFallback, n)
	}
}

// charge takes n more tokens than were taken: of the standing share first, and then of the bucket,
// whether they have them or not.
func (t *Tokens) charge(n int64) {
	if t.source == standingShare {
		t.moveToRedis(0)
	}
	now, b := t.Limiter.Group.Now(), t.bucket
	n -= b.share().charge(now, n)
	t.Limiter.charge(now, b, t.Key, n)
}

// giveBack gives n tokens back to the bucket that they are from. If that was evicted meanwhile,
// they go to Redis through the bucket that its key has now.
func (t *Tokens) giveBack(from local.Source, n int64) {
	g := t.Limiter.Group
	now, b := g.Now(), t.bucket
	e, ok := b.Return(now, n, from, t.gen, t.stamp)
	for !ok {
		if g.Closed.Load() || t.leaseGen != g.leaseGen.Load() {
			// Nothing is sent any more, or a copy of this process may return the tokens.
			t.Limiter.keepStats(t.bucket.Key(), local.Stats{Spent: -n, Burnt: n})
			return
		}
		b = b.successor(now, t.Key)
		e, ok = b.Return(now, n, local.FromRedis, b.Generation(), t.stamp)
	}
	b.apply(now, e)
}

// share returns the standing share that the tokens are from, only to put them back: it has no
// limits to take by.
func (t *Tokens) share() share {
	l := t.Limiter
	return share{limiter: l, hash: l.Group.Cache.Hash(l.ID(t.Key))}
}

// moveToRedis makes tokens of a standing share tokens of Redis. The n of them that are on their way
// there count as if it had granted them.
func (t *Tokens) moveToRedis(n int64) {
	t.setSource(t.keyBucket(t.Limiter.Group.Now()), redis)
	if n > 0 {
		t.Limiter.Standing.count(t.share().hash, -n)
		t.Limiter.keepStats(t.bucket.Key(), local.Stats{Granted: n, Spent: n})
	}
}

// keyBucket returns the bucket of the key.
func (t *Tokens) keyBucket(now time.Duration) *Bucket {
	l := t.Limiter
	b := l.Group.find(now, l.ID(t.Key))
	l.resolve(b, t.Key)
	return b
}

// successor returns the bucket that b's key has since b was evicted, with the numbers by which b
// counted.
func (b *Bucket) successor(now time.Duration, key string) *Bucket {
	next := b.Limiter().Group.find(now, b.ID())
	next.Limiter().resolve(next, key)
	next.Inherit(b.Policy())
	return next
}

// charge takes n more tokens from a bucket. If the bucket was evicted meanwhile, it takes them from
// its successor.
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

// takeShare takes n tokens from the standing share of a key, and stores that in t, unless t is nil.
// b is the key's bucket, or nil.
func (l *Limiter) takeShare(now time.Duration, b *Bucket, id local.ID, n int64, t *Tokens) (o local.Outcome, ok bool) {
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
	if t != nil {
		t.source = standingShare
	}
	left := p.Cap // what nobody of this process asked Redis about may be full
	if b != nil {
		left = b.seenLeft(now)
	}
	return local.Decided(p, local.Granted, local.Local, left+level, 0), true
}
