// Package exposition brings the counts of package statistics to where envoyproxy/ratelimit brings
// its own: to Prometheus, by the mapping of names that it has or by one of the operator's, to
// statsd, and to DogStatsD.
package exposition

import (
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/statsd_exporter/pkg/mapper"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/statistics"
)

// mapping names series as envoyproxy/ratelimit does by default.
//
//go:embed mapping.yaml
var mapping string

// PrometheusOptions are the options of Prometheus.
type PrometheusOptions struct {
	MapperFile   string            // of statsd_exporter; "" means the names of envoyproxy/ratelimit
	Tags         map[string]string // labels of each series
	Milliseconds bool              // of the time of calls, whose name says seconds
	Logger       *slog.Logger
}

// Prometheus is a prometheus.Collector of Counters. A series is there when it is more than 0.
type Prometheus struct {
	mapper mapper.MetricMapper
	tags   map[string]string
	times  map[statistics.Method]*timed

	mu       sync.Mutex
	counters *statistics.Counters
	mapped   [][statistics.Kinds]*series // of each of Counters.All
	totals   map[string]*series
	all      map[string]*series
	descs    map[string]*prometheus.Desc
}

// series is a sum of counters.
type series struct {
	desc   *prometheus.Desc
	labels []*dto.LabelPair
	scale  float64
	sum    float64
}

// unseen is of counters whose mapping drops them.
var unseen = new(series)

// timed is the time of a method's calls.
type timed struct {
	prometheus.Histogram
	scale float64 // of milliseconds
}

// NewPrometheus returns a Prometheus. Until Show it has nothing. With a MapperFile that is wrong it
// has the usual names, or a mistake there would end all replicas.
func NewPrometheus(o PrometheusOptions) (*Prometheus, error) {
	p := &Prometheus{
		tags: o.Tags, times: map[statistics.Method]*timed{}, totals: map[string]*series{}, all: map[string]*series{},
		descs: map[string]*prometheus.Desc{},
	}
	err := errors.New("there is no file")
	if o.MapperFile != "" {
		var text string
		if text, err = readMapping(o.MapperFile); err == nil {
			err = p.mapper.InitFromYAMLString(text)
		}
		if err != nil {
			o.Logger.Error("PROMETHEUS_MAPPER_YAML is not used: series have their usual names", "error", err)
		}
	}
	if err != nil {
		text := mapping
		if o.Milliseconds {
			text = strings.Replace(mapping, "scale: 0.001", "scale: 1", 1)
		}
		if err := p.mapper.InitFromYAMLString(text); err != nil {
			return nil, err // it is ours
		}
	}
	for _, m := range []statistics.Method{statistics.ShouldRateLimit, statistics.Check} {
		p.time(m, o.Logger)
	}
	return p, nil
}

// readMapping reads a mapping file. What statsd_exporter understood until 2026, and
// envoyproxy/ratelimit and Envoy Gateway still write, it writes as it is now.
func readMapping(name string) (string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	var file map[string]any
	if err := yaml.Unmarshal(text, &file); err != nil {
		return "", err
	}
	mappings, _ := file["mappings"].([]any)
	for _, is := range append(mappings, file["defaults"]) {
		m, _ := is.(map[string]any)
		if m["match_metric_type"] == "timer" {
			m["match_metric_type"] = "observer"
		}
		for old, now := range map[string]string{"timer_type": "observer_type", "buckets": "histogram_options", "quantiles": "summary_options"} {
			value, has := m[old]
			if !has {
				continue
			}
			delete(m, old)
			if old != "timer_type" {
				value = map[string]any{old: value}
			}
			if m[now] == nil {
				m[now] = value
			}
		}
	}
	text, err = yaml.Marshal(file)
	return string(text), err
}

// time makes the histogram of a method's calls.
func (p *Prometheus) time(m statistics.Method, log *slog.Logger) {
	statsd := "ratelimit_server." + m.String() + ".response_time"
	is, labels, found := p.mapper.GetMapping(statsd, mapper.MetricTypeObserver)
	name, scale, buckets := mapper.EscapeMetricName(statsd), 1.0, p.mapper.Defaults.HistogramOptions.Buckets
	if found {
		if is.Action == mapper.ActionTypeDrop {
			return
		}
		name = mapper.EscapeMetricName(is.Name)
		if is.Scale.Set {
			scale = is.Scale.Val
		}
		if is.HistogramOptions != nil && len(is.HistogramOptions.Buckets) > 0 {
			buckets = is.HistogramOptions.Buckets
		} else if m == statistics.ShouldRateLimit {
			log.Warn("the time of calls is a histogram: PROMETHEUS_MAPPER_YAML does not ask for one", "series", name)
		}
	}
	made := &timed{prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: name, Help: "The time from the beginning of a call to its end.", ConstLabels: p.with(labels), Buckets: buckets,
	}), scale}
	for _, other := range p.times { // whose method makes no difference to the mapping
		if other.Desc().String() == made.Desc().String() {
			made = other
		}
	}
	p.times[m] = made
}

// Took is for statistics.Options.
func (p *Prometheus) Took(m statistics.Method, t time.Duration) {
	if is := p.times[m]; is != nil {
		is.Observe(t.Seconds() * 1000 * is.scale)
	}
}

// Show makes p show the Counters.
func (p *Prometheus) Show(c *statistics.Counters) { p.counters = c }

// Describe sends nothing: which series there are is not known before.
func (*Prometheus) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (p *Prometheus) Collect(out chan<- prometheus.Metric) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, is := range p.all {
		is.sum = 0
	}
	for i, counts := range p.counters.All() {
		if i == len(p.mapped) {
			p.mapped = append(p.mapped, [statistics.Kinds]*series{})
		}
		for kind := range statistics.Kinds {
			n := counts.Value(kind)
			if n == 0 {
				continue
			}
			if p.mapped[i][kind] == nil {
				p.mapped[i][kind] = p.series(counts.Name(kind))
			}
			p.mapped[i][kind].add(n)
		}
	}
	p.counters.Totals(func(name string, n uint64) {
		if p.totals[name] == nil {
			p.totals[name] = p.series(name)
		}
		p.totals[name].add(n)
	})
	for _, is := range p.all {
		if is.sum > 0 {
			out <- sample{is, is.sum}
		}
	}
	for m, is := range p.times {
		if m == statistics.ShouldRateLimit || is != p.times[statistics.ShouldRateLimit] {
			is.Collect(out)
		}
	}
}

func (s *series) add(n uint64) {
	if s != unseen {
		s.sum += float64(n) * s.scale
	}
}

// series returns the series that a counter is mapped to.
func (p *Prometheus) series(statsd string) *series {
	name, scale := mapper.EscapeMetricName(statsd), 1.0
	is, labels, found := p.mapper.GetMapping(statsd, mapper.MetricTypeCounter)
	if found {
		if is.Action == mapper.ActionTypeDrop {
			return unseen
		}
		name = mapper.EscapeMetricName(is.Name)
		if is.Scale.Set {
			scale = is.Scale.Val
		}
	}
	labels = p.with(labels)
	made := &series{scale: scale}
	id := fmt.Sprintf("%q %v", name, scale)
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		made.labels = append(made.labels, &dto.LabelPair{Name: proto.String(label), Value: proto.String(labels[label])})
		id += fmt.Sprintf(" %q=%q", label, labels[label])
	}
	if old := p.all[id]; old != nil {
		return old
	}
	if p.descs[name] == nil {
		p.descs[name] = prometheus.NewDesc(name, "As envoyproxy/ratelimit counts.", nil, nil)
	}
	made.desc = p.descs[name]
	p.all[id] = made
	return made
}

// with returns labels and the tags that all series have.
func (p *Prometheus) with(labels prometheus.Labels) prometheus.Labels {
	all := prometheus.Labels{}
	for name, value := range p.tags {
		all[mapper.EscapeMetricName(name)] = strings.ToValidUTF8(value, "_")
	}
	maps.Copy(all, labels)
	return all
}

// sample is a series at a time. It is a prometheus.Metric.
type sample struct {
	*series
	value float64
}

// Desc implements prometheus.Metric.
func (s sample) Desc() *prometheus.Desc { return s.desc }

// Write implements prometheus.Metric.
func (s sample) Write(to *dto.Metric) error {
	to.Label, to.Counter = s.labels, &dto.Counter{Value: &s.value}
	return nil
}
