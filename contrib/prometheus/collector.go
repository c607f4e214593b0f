// Package promlimit exports the figures of a limiter to Prometheus.
//
//	registerer.MustRegister(promlimit.NewCollector(group))
//
// docs/metrics.md explains the metrics. dashboard.json is a dashboard for Grafana, and alerts.yaml has rules for
// Prometheus. No label is ever a key: there are as many series as policies and Redis nodes times a constant.
package promlimit

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// maxLabel is the longest value of a label, in bytes. Names of policies have 64 bytes at most, those of nodes are
// addresses.
const maxLabel = 128

// Collector is a prometheus.Collector of Groups. A scrape calls [tiered.Group.Stats] once for each Group, which walks
// all keys of the process. Nothing is counted between scrapes, so decisions cost the same as without a Collector.
// Scrapes may be concurrent. They still work after the Group is closed, and never ask Redis.
type Collector struct {
	groups []namedGroup
	err    error // why it cannot be registered
	descs  []*prometheus.Desc
	group  []described[figures]
	policy []described[tiered.PolicyStats]
	node   []described[tiered.NodeStats]

	mu      sync.Mutex
	highest map[string]float64 // value of a counter at the last scrape, by descriptor and labels
}

type namedGroup struct {
	group  *tiered.Group
	labels []string // its name, or nothing
}

// described is a metric with its descriptor in one Collector.
type described[T any] struct {
	metric[T]
	desc *prometheus.Desc
}

// NewCollector returns a Collector of one Group. If the Group is nil, Register returns an error.
func NewCollector(group *tiered.Group) *Collector {
	if group == nil {
		return &Collector{err: errors.New("promlimit: the Group is nil: must be set")}
	}
	return newCollector(nil, namedGroup{group: group})
}

// NewGroupsCollector returns a Collector of several Groups in one process. The label "group" of each series is the
// Group's name in the map. A name must be 1 to 128 bytes of printable UTF-8, and a Group must not be nil. Otherwise
// Register returns an error that names all that is wrong.
func NewGroupsCollector(groups map[string]*tiered.Group) *Collector {
	var all []namedGroup
	var wrong []error
	if len(groups) == 0 {
		wrong = append(wrong, errors.New("promlimit: there are 0 Groups: must be 1 or more"))
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		if name == "" || !isLabel(name) {
			wrong = append(wrong, fmt.Errorf("promlimit: the name of a Group is %.*q: must be 1 to %d bytes of printable UTF-8",
				maxLabel, name, maxLabel))
		}
		if groups[name] == nil {
			wrong = append(wrong, fmt.Errorf("promlimit: the Group %.*q is nil: must be set", maxLabel, name))
		}
		all = append(all, namedGroup{groups[name], []string{name}})
	}
	if len(wrong) > 0 {
		return &Collector{err: errors.Join(wrong...)}
	}
	return newCollector([]string{"group"}, all...)
}

func newCollector(labels []string, groups ...namedGroup) *Collector {
	c := &Collector{groups: groups, highest: map[string]float64{}}
	c.group = describe(c, groupMetrics, labels)
	c.policy = describe(c, policyMetrics, append(slices.Clip(labels), "policy"))
	c.node = describe(c, nodeMetrics, append(slices.Clip(labels), "node"))
	return c
}

func describe[T any](c *Collector, metrics []metric[T], labels []string) (all []described[T]) {
	for _, m := range metrics {
		desc := prometheus.NewDesc(m.name, m.help, append(slices.Clip(labels), m.labels...), nil)
		c.descs = append(c.descs, desc)
		all = append(all, described[T]{m, desc})
	}
	return all
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
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	for _, g := range c.groups {
		c.write(metrics, g.labels, figures{Stats: g.group.Stats(), standing: hasStanding(g.group)})
	}
}

// hasStanding reports whether a policy of the Group has standing shares.
func hasStanding(g *tiered.Group) bool {
	return slices.ContainsFunc(g.Policies(), func(p tiered.Policy) bool { return p.Standing == tiered.StandingOn })
}

// write sends the figures of a Group.
func (c *Collector) write(metrics chan<- prometheus.Metric, labels []string, f figures) {
	send(c, metrics, c.group, labels, f)
	for name, p := range f.Policies {
		send(c, metrics, c.policy, append(slices.Clip(labels), labelValue(name)), p)
	}
	for name, n := range f.Nodes {
		send(c, metrics, c.node, append(slices.Clip(labels), labelValue(name)), n)
	}
}

func send[T any](c *Collector, metrics chan<- prometheus.Metric, all []described[T], labels []string, of T) {
	for _, m := range all {
		if m.histogram != nil {
			metrics <- newHistogram(m.desc, m.histogram(of), labels)
			continue
		}
		m.read(of, func(value float64, more ...string) {
			values := append(slices.Clip(labels), more...)
			if m.kind == prometheus.CounterValue {
				value = c.neverLess(m.name, values, value)
			}
			metric, err := prometheus.NewConstMetric(m.desc, m.kind, value, values...)
			if err != nil {
				metric = prometheus.NewInvalidMetric(m.desc, err)
			}
			metrics <- metric
		})
	}
}

// neverLess returns value, or what an earlier scrape showed if that was more. Stats is no snapshot: a figure can fall
// by the few decisions that were under way, and by tokens that were refunded. Prometheus would take a counter that
// falls for a restart, and add all of it to the rate.
func (c *Collector) neverLess(name string, labels []string, value float64) float64 {
	series := name + "\xff" + strings.Join(labels, "\xff")
	c.mu.Lock()
	defer c.mu.Unlock()
	value = max(value, c.highest[series])
	c.highest[series] = value
	return value
}

// labelValue makes any name a value that Prometheus takes. A name with bytes or characters that cannot be printed, or
// longer than 128 bytes, becomes its beginning and a part of its SHA-256, so that two names stay two series.
func labelValue(name string) string {
	if isLabel(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%s-%x", strings.Map(printable, name[:min(len(name), maxLabel/2)]), sum[:8])
}

// isLabel reports whether a name can be the value of a label as it is.
func isLabel(name string) bool {
	return len(name) <= maxLabel && utf8.ValidString(name) && strings.Map(printable, name) == name
}

// printable returns the character, or "?" if it cannot be printed. Some parsers take a zero byte for the end of the
// text.
func printable(r rune) rune {
	if r == utf8.RuneError || !unicode.IsPrint(r) {
		return '?'
	}
	return r
}
