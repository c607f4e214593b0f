package otellimit

import (
	"errors"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tiered-limiter/tiered-limiter/tiered/metrics"
)

// instrument is what a metric is observed by. Only a histogram has the last two.
type instrument struct {
	value      metric.Float64Observable // of a histogram: its buckets
	count, sum metric.Float64Observable
}

// instrumentsOf makes the instruments of all metrics. It returns them also as a list.
func instrumentsOf(meter metric.Meter, all []*metrics.Metric) (
	of map[*metrics.Metric]instrument, list []metric.Observable, err error,
) {
	of = map[*metrics.Metric]instrument{}
	create := func(m *metrics.Metric, suffix, unit string) metric.Float64Observable {
		i, wrong := newInstrument(meter, m, suffix, unit)
		err = errors.Join(err, wrong)
		list = append(list, i)
		return i
	}
	for _, m := range all {
		if m.Kind == metrics.Histogram {
			of[m] = instrument{create(m, "_bucket", ""), create(m, "_count", ""), create(m, "_sum", m.Unit)}
		} else {
			of[m] = instrument{value: create(m, "", m.Unit)}
		}
	}
	return of, list, err
}

func newInstrument(meter metric.Meter, m *metrics.Metric, suffix, unit string) (metric.Float64Observable, error) {
	name, u, d := nameOf(m)+suffix, metric.WithUnit(unit), metric.WithDescription(m.Help)
	switch m.Kind {
	case metrics.Counter:
		return meter.Float64ObservableCounter(name, u, d)
	case metrics.Gauge:
		return meter.Float64ObservableGauge(name, u, d)
	}
	return meter.Float64ObservableUpDownCounter(name, u, d)
}

// nameOf returns the name of an instrument. An exporter for Prometheus adds the unit and "_total"
// to it, except for the parts of a histogram, which have the unit in their names.
func nameOf(m *metrics.Metric) string {
	name := strings.Replace(m.Name, "_", ".", 1)
	if m.Kind == metrics.Histogram {
		return name
	}
	name = strings.TrimSuffix(name, "_total")
	switch m.Unit {
	case "s":
		name = strings.TrimSuffix(name, "_seconds")
	case "1":
		name = strings.TrimSuffix(name, "_ratio")
	}
	return name
}

// observe reports the value of a series.
func (i instrument) observe(o metric.Observer, s metrics.Sample) {
	attributes := attributesOf(s)
	report := func(to metric.Float64Observable, value float64, more ...attribute.KeyValue) {
		o.ObserveFloat64(to, value, metric.WithAttributes(append(attributes[:len(attributes):len(attributes)], more...)...))
	}
	if s.Metric.Kind != metrics.Histogram {
		report(i.value, s.Value)
		return
	}
	for bound, until := range metrics.Buckets(s.Histogram) {
		report(i.value, float64(until), attribute.String("le", strconv.FormatFloat(bound, 'g', -1, 64)))
	}
	count := float64(s.Histogram.Count)
	report(i.value, count, attribute.String("le", "+Inf"))
	report(i.count, count)
	report(i.sum, s.Histogram.Sum.Seconds())
}
