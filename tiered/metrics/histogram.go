package metrics

import (
	"iter"
	"math"
	"time"
)

const (
	perDouble = 4  // buckets of a histogram for each factor of two
	first     = 56 // the bound of bucket 0 is this many buckets below 1 s
)

// Durations is a histogram of tiered.Stats: RedisTime or RoundTrips. The bound doubles every four
// buckets, from 61 µs to 4 s: see [Bound].
type Durations struct {
	Count   int64
	Sum     time.Duration
	Buckets []int64 // how many are in each; the last one has no bound
}

// Bound returns the upper bound of bucket i of a histogram in seconds, exactly as Prometheus
// computes it for a native histogram of schema 2. The last bucket has none.
func Bound(i int) float64 { return math.Exp2(float64(i-first) / perDouble) }

// Buckets yields the classic buckets of a histogram: the upper bound in seconds, from 61 µs to 4 s
// by factors of two, and how many durations were up to it. It leaves out the bucket +Inf.
func Buckets(h Durations) iter.Seq2[float64, int64] {
	return func(yield func(float64, int64) bool) {
		until := int64(0)
		for i, n := range h.Buckets {
			until += n
			if i%perDouble == 0 && i < len(h.Buckets)-1 && !yield(Bound(i), until) {
				return
			}
		}
	}
}
