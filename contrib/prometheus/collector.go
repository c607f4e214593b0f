// Package promlimit exports the figures of a limiter to Prometheus.
//
//	registerer.MustRegister(promlimit.NewCollector(group))
//
// docs/metrics.md explains the metrics. dashboard.json is a dashboard for Grafana, and alerts.yaml
// has rules for Prometheus. No label is ever a key: there are as many series as policies and Redis
// nodes times a constant.
package promlimit

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/metrics"
)

// Collector is a prometheus.Collector of Groups. A scrape calls [tiered.Group.Stats] once for each
// Group, which walks all keys of the process. Nothing is counted between scrapes, so decisions cost
// the same as without a Collector. Scrapes may be concurrent. They still work after the Group is
// closed, and never ask Redis.
type Collector struct {
	err    error           // why it cannot be registered
	reader *metrics.Reader // nil if err is not
	descs  map[*metrics.Metric]*prometheus.Desc
}

// NewCollector returns a Collector of one Group. If the Group is nil, Register returns an error.
func NewCollector(group *tiered.Group) *Collector { return newCollector(metrics.NewReader(group)) }

// NewGroupsCollector returns a Collector of several Groups in one process. The label "group" of
// each series is the Group's name in the map. A name must be 1 to 128 bytes of printable UTF-8, and
// a Group must not be nil. Otherwise Register returns an error that names all that is wrong.
func NewGroupsCollector(groups map[string]*tiered.Group) *Collector {
	return newCollector(metrics.NewGroupsReader(groups))
}

// NewTotalsCollector returns a Collector of one Group with thousands of policies. It has no series
// for each of them, but their sums, with the label policy="all": see [metrics.NewTotalsReader].
// Each scrape calls each, if it is not nil, with the figures of the policies. If the Group is nil,
// Register returns an error.
func NewTotalsCollector(group *tiered.Group, each func(map[string]tiered.PolicyStats)) *Collector {
	return newCollector(metrics.NewTotalsReader(group, each))
}

func newCollector(reader *metrics.Reader, err error) *Collector {
	if err != nil {
		return &Collector{err: err}
	}
	c := &Collector{reader: reader, descs: map[*metrics.Metric]*prometheus.Desc{}}
	for _, m := range reader.Metrics() {
		c.descs[m] = prometheus.NewDesc(m.Name, m.Help, m.Labels, nil)
	}
	return c
}

// Describe implements prometheus.Collector. It does not ask the Groups.
func (c *Collector) Describe(descs chan<- *prometheus.Desc) {
	if c.err != nil {
		descs <- prometheus.NewInvalidDesc(c.err)
		return
	}
	for _, d := range c.descs {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	if c.err != nil {
		return
	}
	for s := range c.reader.Samples() {
		desc := c.descs[s.Metric]
		if s.Metric.Kind == metrics.Histogram {
			out <- newHistogram(desc, s.Histogram, s.Labels)
			continue
		}
		kind := prometheus.GaugeValue
		if s.Metric.Kind == metrics.Counter {
			kind = prometheus.CounterValue
		}
		metric, err := prometheus.NewConstMetric(desc, kind, s.Value, s.Labels...)
		if err != nil {
			metric = prometheus.NewInvalidMetric(desc, err)
		}
		out <- metric
	}
}
