package ideal

import "time"

// Bucket is the ideal token bucket: it starts full and answers at once. Make one with [NewBucket].
type Bucket struct {
	limit   limit
	level   wide
	last    int64 // ns, the time of level
	started bool
}

// NewBucket returns a full bucket that refills by tokens per period, up to burst.
func NewBucket(tokens int64, per time.Duration, burst int64) *Bucket {
	l := newLimit(tokens, per, burst)
	return &Bucket{limit: l, level: l.burst}
}

// Has reports whether n tokens can be had at a time (ns). Times must not go back from one call to
// the next; they may be equal.
func (b *Bucket) Has(at, n int64) bool {
	if b.started {
		b.level = b.level.plus(b.limit.refill(b.last, at))
		if b.limit.burst.less(b.level) {
			b.level = b.limit.burst
		}
	}
	b.last, b.started = at, true
	return !b.level.less(b.limit.cost(n))
}

// Take takes n tokens at a time if they can be had, and reports that. A refusal costs nothing.
func (b *Bucket) Take(at, n int64) bool {
	has := b.Has(at, n)
	if has {
		b.level = b.level.minus(b.limit.cost(n))
	}
	return has
}

// Allows reports how many tokens can be had from a time until before another one, beside a burst.
// These are what flows in, and what the bucket has above the burst.
func (b *Bucket) Allows(from, to, burst int64) float64 {
	level := b.level
	if b.started {
		level = level.plus(b.limit.refill(b.last, from))
	}
	if b.limit.burst.less(level) {
		level = b.limit.burst
	}
	more := max(level.minus(b.limit.cost(burst)).float(), 0)
	return (more + b.limit.refill(from, to).float()) / float64(b.limit.period)
}
