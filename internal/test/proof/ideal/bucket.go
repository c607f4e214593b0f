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

// Take reports whether n tokens can be had at a time (ns), and takes them if so. A refusal costs
// nothing. Times must not go back from one call to the next; they may be equal.
func (b *Bucket) Take(at, n int64) bool {
	if b.started {
		b.level = b.level.plus(b.limit.refill(b.last, at))
		if b.limit.burst.less(b.level) {
			b.level = b.limit.burst
		}
	}
	b.last, b.started = at, true
	left := b.level.minus(b.limit.cost(n))
	if left.less(wide{}) {
		return false
	}
	b.level = left
	return true
}
