package promlimit

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The buckets of a tiered.Histogram, as a native histogram counts them.
const (
	schema    = 2  // four buckets for each factor of two
	perDouble = 4  // the same
	first     = 56 // buckets that a native histogram has from bucket 0 to the one that ends at 1 s
)

// histogram is a prometheus.Metric with classic and native buckets: a Prometheus that scrapes native histograms takes
// these, any other one takes the classic ones. prometheus.NewConstHistogram has only the classic ones, and
// prometheus.NewConstNativeHistogram only the native ones.
type histogram struct {
	desc   *prometheus.Desc
	labels []*dto.LabelPair
	is     tiered.Histogram
}

func newHistogram(desc *prometheus.Desc, is tiered.Histogram, labels []string) prometheus.Metric {
	return histogram{desc, prometheus.MakeLabelPairs(desc, labels), is}
}

// Desc implements prometheus.Metric.
func (h histogram) Desc() *prometheus.Desc { return h.desc }

// Write implements prometheus.Metric. Classic buckets end at powers of two, from 61 µs to 4 s. Native buckets have a
// quarter of that width in the logarithm. Bucket 0, which begins at 0, is their zero bucket. What took longer than 4 s
// is in the one up to 4.8 s.
func (h histogram) Write(out *dto.Metric) error {
	out.Label = h.labels
	buckets := h.is.Buckets
	if len(buckets) == 0 {
		buckets = []int64{0}
	}
	is := &dto.Histogram{
		SampleCount:   proto.Uint64(uint64(h.is.Count())),
		SampleSum:     proto.Float64(h.is.Sum.Seconds()),
		Schema:        proto.Int32(schema),
		ZeroThreshold: proto.Float64(bound(0)),
		ZeroCount:     proto.Uint64(uint64(buckets[0])),
		PositiveSpan:  []*dto.BucketSpan{{Offset: proto.Int32(1 - first), Length: proto.Uint32(uint32(len(buckets) - 1))}},
	}
	until := uint64(0)
	for i, n := range buckets {
		until += uint64(n)
		if i%perDouble == 0 && i < len(buckets)-1 {
			is.Bucket = append(is.Bucket, &dto.Bucket{UpperBound: proto.Float64(bound(i)), CumulativeCount: proto.Uint64(until)})
		}
		if i > 0 {
			before := int64(0)
			if i > 1 {
				before = buckets[i-1]
			}
			is.PositiveDelta = append(is.PositiveDelta, n-before)
		}
	}
	out.Histogram = is
	return nil
}

// bound returns the upper bound of bucket i in seconds, exactly as Prometheus computes it.
func bound(i int) float64 { return math.Exp2(float64(i-first) / perDouble) }
