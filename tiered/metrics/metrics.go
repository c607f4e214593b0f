// Package metrics is for exporters: it lists the metrics of a limiter and reads their values.
//
// contrib/prometheus and contrib/otel export them. An exporter for another system is a loop over
// [Reader.Samples]. docs/metrics.md says what question each metric answers.
package metrics

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Kind says how values of a metric add up.
type Kind int

// The kinds.
const (
	Counter   Kind = iota // only grows, from the start of the process
	UpDown                // rises and falls; its sum over processes makes sense
	Gauge                 // rises and falls; its sum over processes makes no sense
	Histogram             // of durations; it only grows
)

// Metric describes a metric.
type Metric struct {
	Name   string // in Prometheus, such as tiered_redis_wait_seconds; a Counter ends in _total
	Help   string // a sentence or two
	Unit   string // in UCUM, such as "s" or "{token}"; "" for a state, which has none
	Kind   Kind
	Labels []string // their names; none of them is a key
}

// Sample is the value of one series now.
type Sample struct {
	Metric    *Metric  // one of those in Reader.Metrics
	Labels    []string // values, in the order of Metric.Labels
	Value     float64  // 0 for a Histogram
	Histogram Durations
}

// Reader reads the metrics of one or more Groups. It may be used concurrently. A nil Reader has no
// metrics.
type Reader struct {
	groups []group
	all    []*Metric

	ofGroup  []reading[figures]
	ofPolicy []reading[tiered.PolicyStats]
	ofPlaces []reading[tiered.AtOnceStats]
	ofNode   []reading[tiered.NodeStats]
	totals   *totals // nil if each policy has its series

	mu      sync.Mutex
	read    int64               // how often all series were read
	highest map[string]lastRead // of each counter, by name and labels
}

type group struct {
	source
	labels []string // its name, or nothing
}

// source is a Group. Tests have other ones.
type source interface {
	Stats() tiered.Stats

	// HasStanding reports whether a policy has standing shares.
	HasStanding(tiered.Stats) bool
}

type groupSource struct{ *tiered.Group }

func (g groupSource) HasStanding(s tiered.Stats) bool {
	for name := range s.Policies {
		if l, ok := g.Limiter(name); ok && l.Policy().Standing > 0 {
			return true
		}
	}
	return false
}

// NewReader returns a Reader of one Group. A nil or zero Group is an error.
func NewReader(g *tiered.Group) (*Reader, error) {
	if wrong := problem(g); wrong != "" {
		return nil, errors.New("metrics: the Group " + wrong)
	}
	return newReader(nil, group{source: groupSource{g}}), nil
}

// NewGroupsReader returns a Reader of several Groups of one process. The label "group" of each
// series is the Group's name in the map. A name must be 1 to 128 bytes of printable UTF-8, and a
// Group must not be nil or zero. The error names all that is wrong.
func NewGroupsReader(groups map[string]*tiered.Group) (*Reader, error) {
	var all []group
	var wrong []error
	if len(groups) == 0 {
		wrong = append(wrong, errors.New("metrics: there are 0 Groups: must be 1 or more"))
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		if name == "" || !isClean(name) {
			wrong = append(wrong, fmt.Errorf("metrics: the name of a Group is %.*q: must be 1 to %d bytes of printable UTF-8",
				maxLabel, name, maxLabel))
		}
		if problem := problem(groups[name]); problem != "" {
			wrong = append(wrong, fmt.Errorf("metrics: the Group %.*q %s", maxLabel, name, problem))
		}
		all = append(all, group{groupSource{groups[name]}, []string{name}})
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	return newReader([]string{"group"}, all...), nil
}

// problem says what is wrong with a Group, if anything is.
func problem(g *tiered.Group) string {
	switch {
	case g == nil:
		return "is nil: must be set"
	case g.Stats().Format == "":
		return "is zero: must be made by tiered.NewGroup"
	}
	return ""
}

func newReader(labels []string, groups ...group) *Reader {
	r := &Reader{groups: groups, highest: map[string]lastRead{}}
	r.ofGroup = labeled(r, ofGroup, labels)
	r.ofPolicy = labeled(r, ofPolicy, append(slices.Clip(labels), "policy"))
	r.ofPlaces = labeled(r, ofPlaces, append(slices.Clip(labels), "policy"))
	r.ofNode = labeled(r, ofNode, append(slices.Clip(labels), "node"))
	return r
}

// labeled returns a part of the table with the labels that all its metrics have.
func labeled[T any](r *Reader, part []reading[T], labels []string) []reading[T] {
	all := slices.Clone(part)
	for i := range all {
		all[i].Labels = append(slices.Clip(labels), all[i].Labels...)
		r.all = append(r.all, &all[i].Metric)
	}
	return all
}

// Metrics returns all metrics, whether they have series now or not.
func (r *Reader) Metrics() []*Metric {
	if r == nil {
		return nil
	}
	return slices.Clone(r.all)
}

// Samples reads all series. It calls [tiered.Group.Stats] once for each Group, which walks all keys
// of the process. It never asks Redis, and works after the Group is closed. A counter never falls,
// but that of a policy or a node which begins anew: see [tiered.PolicyStats].Number.
func (r *Reader) Samples() iter.Seq[Sample] {
	return func(yield func(Sample) bool) {
		if r == nil {
			return
		}
		r.mu.Lock()
		r.read++
		read := r.read
		r.mu.Unlock()
		for _, g := range r.groups {
			f := figures{Stats: g.Stats()}
			f.standing = g.HasStanding(f.Stats)
			if !samples(r, r.ofGroup, g.labels, 0, f, yield) {
				return
			}
			policies := f.Policies
			if r.totals != nil {
				policies = map[string]tiered.PolicyStats{AllPolicies: r.totals.of(policies)}
			}
			for name, p := range policies {
				if !samples(r, r.ofPolicy, append(slices.Clip(g.labels), cleaned(name)), p.Number, p, yield) {
					return
				}
			}
			for name, s := range f.AtOnce {
				if !samples(r, r.ofPlaces, append(slices.Clip(g.labels), cleaned(name)), 0, s, yield) {
					return
				}
			}
			for name, n := range f.Nodes {
				if !samples(r, r.ofNode, append(slices.Clip(g.labels), cleaned(name)), n.Number, n, yield) {
					return
				}
			}
		}
		r.forget(read)
	}
}

// samples yields the series of a part of the table: those of the policy or the node with a number.
// It reports false if yield did.
func samples[T any](r *Reader, part []reading[T], labels []string, number int, of T, yield func(Sample) bool) bool {
	more := true
	for i := range part {
		m := &part[i]
		if m.histogram != nil {
			more = more && yield(Sample{Metric: &m.Metric, Labels: labels, Histogram: m.histogram(of)})
			continue
		}
		m.read(of, func(value float64, own ...string) {
			values := append(slices.Clip(labels), own...)
			if m.Kind == Counter {
				value = r.neverLess(m.Name, values, number, value)
			}
			more = more && yield(Sample{Metric: &m.Metric, Labels: values, Value: value})
		})
	}
	return more
}

// neverLess returns value, or what was read before of the policy or the node with this number if
// that was more. Stats is no snapshot: a figure can fall by the few decisions that were under way.
// A counter that falls would be taken for a restart, and all of it added to the rate. So it falls
// only if another policy of that name has begun.
func (r *Reader) neverLess(name string, labels []string, number int, value float64) float64 {
	series := name + "\xff" + strings.Join(labels, "\xff")
	r.mu.Lock()
	defer r.mu.Unlock()
	if before := r.highest[series]; before.number == number {
		value = max(value, before.value)
	}
	r.highest[series] = lastRead{value, number, r.read}
	return value
}

// lastRead is a counter when it was read last.
type lastRead struct {
	value  float64
	number int   // of the policy or the node; 0 of the Group
	read   int64 // number of that reading
}

// forget forgets the counters that no reading since the one of that number has had.
func (r *Reader) forget(read int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.highest, func(_ string, l lastRead) bool { return l.read < read })
}
