package histogram_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/histogram"
)

// Every duration is in the bucket whose bounds are around it.
func TestBuckets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(-10, int64(20*time.Second)).Draw(t, "d"))
		if rapid.Bool().Draw(t, "edge") {
			d = histogram.Bound(rapid.IntRange(0, histogram.Buckets-2).Draw(t, "i")) + time.Duration(rapid.IntRange(-1, 1).Draw(t, "off"))
		}
		var h histogram.Histogram
		h.Observe(d)
		sum, buckets := h.Read()
		if sum != max(d, 0) {
			t.Fatalf("sum %v of %v", sum, d)
		}
		for i, n := range buckets {
			within := (i == 0 || d > histogram.Bound(i-1)) && (i == histogram.Buckets-1 || d <= histogram.Bound(i))
			if (n == 1) != within {
				t.Fatalf("%v: %d in bucket %d", d, n, i)
			}
		}
	})
}
