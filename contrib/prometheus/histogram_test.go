package promlimit_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	promlimit "github.com/tiered-limiter/tiered-limiter/contrib/prometheus"
	"github.com/tiered-limiter/tiered-limiter/internal/histogram"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered/metrics"
)

// A duration is in the same bucket of the classic and the native histogram as in ours: between the
// same bounds.
func TestHistogram(t *testing.T) {
	desc := prometheus.NewDesc("h_seconds", "A histogram.", nil, nil)
	for i := range 66 {
		is := metrics.Durations{Count: 5, Sum: 3 * time.Second, Buckets: make([]int64, 66)}
		is.Buckets[i] = 5
		var m dto.Metric
		fatal.If(t, promlimit.NewHistogram(desc, is, nil).Write(&m))
		h := m.GetHistogram()
		if h.GetSampleCount() != 5 || h.GetSampleSum() != 3 {
			t.Fatalf("bucket %d: %v", i, h)
		}
		lower, upper := nativeBounds(t, h)
		if i == 0 && (lower != 0 || !about(upper, histogram.Bound(0))) {
			t.Errorf("bucket 0 is from %v to %v", lower, upper)
		}
		if i > 0 && (!about(lower, histogram.Bound(i-1)) || i < 65 && !about(upper, histogram.Bound(i))) {
			t.Errorf("bucket %d is from %v to %v", i, lower, upper)
		}
		want := slices.IndexFunc(h.GetBucket(), func(b *dto.Bucket) bool { return b.GetUpperBound() > upper-1e-9 })
		for k, b := range h.GetBucket() {
			if (b.GetCumulativeCount() == 5) != (want >= 0 && k >= want) {
				t.Errorf("bucket %d is not within the classic one up to %v", i, b.GetUpperBound())
			}
		}
	}
}

// nativeBounds returns the bounds of the only bucket that is not empty.
func nativeBounds(t *testing.T, h *dto.Histogram) (lower, upper float64) {
	t.Helper()
	if h.GetZeroCount() > 0 {
		return 0, h.GetZeroThreshold()
	}
	index, n, next := int32(0), int64(0), 0
	for _, span := range h.GetPositiveSpan() {
		index += span.GetOffset()
		for range span.GetLength() {
			n += h.GetPositiveDelta()[next]
			next++
			if n == 5 {
				base := math.Pow(2, math.Pow(2, -float64(h.GetSchema())))
				return math.Pow(base, float64(index-1)), math.Pow(base, float64(index))
			}
			index++
		}
	}
	t.Fatalf("nothing in %v", h)
	return 0, 0
}

func about(seconds float64, d time.Duration) bool { return math.Abs(seconds-d.Seconds()) < 2e-9 }
