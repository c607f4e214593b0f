package metrics

import (
	"iter"
	"math"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

const (
	perDouble = 4  // buckets of a tiered.Histogram for each factor of two
	first     = 56 // the bound of bucket 0 is this many buckets below 1 s
)

// Bound returns the upper bound of bucket i of a [tiered.Histogram] in seconds, exactly as Prometheus computes it for a
// native histogram of schema 2. The last bucket has none.
func Bound(i int) float64 { return math.Exp2(float64(i-first) / perDouble) }

// Buckets yields the classic buckets of a histogram: the upper bound in seconds, from 61 µs to 4 s by factors of two,
// and how many durations were up to it. It leaves out the bucket +Inf.
func Buckets(h tiered.Histogram) iter.Seq2[float64, int64] {
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
