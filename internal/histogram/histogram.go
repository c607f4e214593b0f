// Package histogram counts durations in exponential buckets, four for each factor of two.
// Prometheus calls that schema 2.
package histogram

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	// PerDouble is the number of buckets for each factor of two.
	PerDouble = 4

	// First is the logarithm to base two of the upper bound of bucket 0, in seconds: 61 µs.
	First = -14

	// Buckets is the number of buckets. The last one has no upper bound; the one before it ends at
	// 4 s.
	Buckets = 16*PerDouble + 2
)

// Histogram counts durations. Its methods may be called concurrently. The zero value is empty.
type Histogram struct {
	sum     atomic.Int64 // ns
	buckets [Buckets]atomic.Int64
}

// Observe counts a duration. A negative one counts as 0.
func (h *Histogram) Observe(d time.Duration) {
	d = max(d, 0)
	h.sum.Add(int64(d))
	h.buckets[bucket(d)].Add(1)
}

// bucket returns the bucket of d: the first whose bound is not below it.
func bucket(d time.Duration) int {
	if d <= Bound(0) {
		return 0
	}
	i := min(max(int(math.Ceil((math.Log2(d.Seconds())-First)*PerDouble)), 0), Buckets-1)
	for i > 0 && d <= Bound(i-1) { // a logarithm may be off by its last digit
		i--
	}
	for i < Buckets-1 && d > Bound(i) {
		i++
	}
	return i
}

// Bound returns the upper bound of bucket i < Buckets − 1. It is in the bucket.
func Bound(i int) time.Duration {
	return time.Duration(math.Exp2(First+float64(i)/PerDouble) * float64(time.Second))
}

// Read returns the sum of all durations and how many are in each bucket.
func (h *Histogram) Read() (sum time.Duration, buckets []int64) {
	buckets = make([]int64, Buckets)
	for i := range h.buckets {
		buckets[i] = h.buckets[i].Load()
	}
	return time.Duration(h.sum.Load()), buckets
}
