package promlimit

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/tiered-limiter/tiered-limiter/tiered/metrics"
)

// The buckets of a metrics.Durations, as a native histogram counts them.
const (
	schema = 2  // four buckets for each factor of two
	first  = 56 // buckets that a native histogram has from bucket 0 to the one that ends at 1 s
)

// histogram is a prometheus.Metric with classic and native buckets: a Prometheus that scrapes
// native histograms takes these, any other one takes the classic ones. prometheus.NewConstHistogram
// has only the classic ones, and prometheus.NewConstNativeHistogram only the native ones.
type histogram struct {
	desc   *prometheus.Desc
	labels []*dto.LabelPair
	is     metrics.Durations
}

func newHistogram(desc *prometheus.Desc, is metrics.Durations, labels []string) prometheus.Metric {
	return histogram{desc, prometheus.MakeLabelPairs(desc, labels), is}
}

// Desc implements prometheus.Metric.
func (h histogram) Desc() *prometheus.Desc { return h.desc }

// Write implements prometheus.Metric. Classic buckets end at powers of two, from 61 µs to 4 s.
// Native buckets have a quarter of that width in the logarithm. Bucket 0, which begins at 0, is
// their zero bucket. What took longer than 4 s is in the one up to 4.8 s.
func (h histogram) Write(out *dto.Metric) error {
	out.Label = h.labels
	buckets := h.is.Buckets
	if len(buckets) == 0 {
		buckets = []int64{0}
	}
	is := &dto.Histogram{
		SampleCount:   proto.Uint64(uint64(h.is.Count)),
		SampleSum:     proto.Float64(h.is.Sum.Seconds()),
		Schema:        proto.Int32(schema),
		ZeroThreshold: proto.Float64(metrics.Bound(0)),
		ZeroCount:     proto.Uint64(uint64(buckets[0])),
		PositiveSpan:  []*dto.BucketSpan{{Offset: proto.Int32(1 - first), Length: proto.Uint32(uint32(len(buckets) - 1))}},
	}
	for bound, until := range metrics.Buckets(h.is) {
		is.Bucket = append(is.Bucket, &dto.Bucket{
			UpperBound: proto.Float64(bound), CumulativeCount: proto.Uint64(uint64(until)),
		})
	}
	before := int64(0)
	for _, n := range buckets[1:] {
		is.PositiveDelta = append(is.PositiveDelta, n-before)
		before = n
	}
	out.Histogram = is
	return nil
}
