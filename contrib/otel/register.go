// Package otellimit exports the figures of a limiter as OpenTelemetry metrics, and puts refusals and waits on spans.
//
//	_, err := otellimit.Register(otel.GetMeterProvider(), limiter.Group())
//
// docs/opentelemetry.md explains the metrics and the events. No attribute is ever a key: there are as many series as
// policies and Redis nodes times a constant.
package otellimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// scope is the name of the Meter.
const scope = "github.com/tiered-limiter/tiered-limiter/contrib/otel"

// Register exports the figures of a Group through a MeterProvider. It is an error if one of them is nil. Register a
// Group only once, because OpenTelemetry adds figures with the same attributes. [RegisterGroups] is for several Groups.
//
// A collection calls [tiered.Group.Stats] once, which walks all keys of the process. Nothing is counted between
// collections, so decisions cost the same as without metrics. Collections may be concurrent, and never ask Redis. They
// work after the Group is closed, so that the last export has the tokens that Close returned. Unregister ends them.
//
// OpenTelemetry has no asynchronous histogram. Each histogram of [tiered.Stats] becomes two counters: the total time,
// and how often it took up to the seconds in the attribute "le". So they work with any MeterProvider, with views and
// with delta temporality, as the other metrics do. A metric.Producer of the SDK could yield histograms. But it must be
// there before the MeterProvider, views do not apply to it, and it does not know which temporality is wanted.
func Register(provider metric.MeterProvider, group *tiered.Group) (metric.Registration, error) {
	if group == nil {
		return nil, errors.Join(checkProvider(provider), errors.New("otellimit: the Group is nil: must be set"))
	}
	return register(provider, []namedGroup{{group: group}})
}

// RegisterGroups is [Register] for several Groups in one process. The attribute "ratelimit.group" of each series is the
// Group's name in the map. A name must be 1 to 128 bytes of printable UTF-8, and a Group must not be nil. The error
// names all that is wrong.
func RegisterGroups(provider metric.MeterProvider, groups map[string]*tiered.Group) (metric.Registration, error) {
	wrong := []error{checkProvider(provider)}
	if len(groups) == 0 {
		wrong = append(wrong, errors.New("otellimit: there are 0 Groups: must be 1 or more"))
	}
	var all []namedGroup
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		if name == "" || !isText(name) {
			wrong = append(wrong, fmt.Errorf("otellimit: the name of a Group is %.*q: must be 1 to %d bytes of printable UTF-8",
				maxText, name, maxText))
		}
		if groups[name] == nil {
			wrong = append(wrong, fmt.Errorf("otellimit: the Group %.*q is nil: must be set", maxText, name))
		}
		all = append(all, namedGroup{groups[name], []attribute.KeyValue{attribute.String("ratelimit.group", name)}})
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, err
	}
	return register(provider, all)
}

func checkProvider(provider metric.MeterProvider) error {
	if provider == nil {
		return errors.New("otellimit: the MeterProvider is nil: must be set")
	}
	return nil
}

type namedGroup struct {
	group      *tiered.Group
	attributes []attribute.KeyValue // its name, or nothing
}

// register registers one callback for all instruments.
func register(provider metric.MeterProvider, groups []namedGroup) (metric.Registration, error) {
	if err := checkProvider(provider); err != nil {
		return nil, err
	}
	meter := provider.Meter(scope)
	c, err := newCollector(meter)
	if err != nil {
		return nil, fmt.Errorf("otellimit: %w", err)
	}
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, g := range groups {
			c.observe(o, g.attributes, figures{Stats: g.group.Stats(), standing: hasStanding(g.group)})
		}
		return nil
	}, c.instruments...)
}

// hasStanding reports whether a policy of the Group has standing shares.
func hasStanding(g *tiered.Group) bool {
	return slices.ContainsFunc(g.Policies(), func(p tiered.Policy) bool { return p.Standing == tiered.StandingOn })
}

// collector has the instruments of one Meter.
type collector struct {
	instruments []metric.Observable
	group       []instrument[figures]
	policy      []instrument[tiered.PolicyStats]
	node        []instrument[tiered.NodeStats]

	mu      sync.Mutex
	highest map[series]float64 // value of a counter at the last collection
}

// series is one combination of attributes of an instrument.
type series struct {
	name       string
	attributes attribute.Distinct
}

// instrument is a figure with its instrument.
type instrument[T any] struct {
	figure[T]
	metric.Float64Observable
}

func newCollector(meter metric.Meter) (*collector, error) {
	c := &collector{highest: map[series]float64{}}
	var errs [3]error
	c.group, errs[0] = instrumentsOf(c, meter, groupFigures)
	c.policy, errs[1] = instrumentsOf(c, meter, policyFigures)
	c.node, errs[2] = instrumentsOf(c, meter, nodeFigures)
	return c, errors.Join(errs[:]...)
}

func instrumentsOf[T any](c *collector, meter metric.Meter, all []figure[T]) (list []instrument[T], err error) {
	for _, f := range all {
		i := instrument[T]{figure: f}
		var wrong error
		unit, description := metric.WithUnit(f.unit), metric.WithDescription(f.description)
		switch f.kind {
		case counter:
			i.Float64Observable, wrong = meter.Float64ObservableCounter(f.name, unit, description)
		case upDown:
			i.Float64Observable, wrong = meter.Float64ObservableUpDownCounter(f.name, unit, description)
		case gauge:
			i.Float64Observable, wrong = meter.Float64ObservableGauge(f.name, unit, description)
		}
		err = errors.Join(err, wrong)
		c.instruments = append(c.instruments, i.Float64Observable)
		list = append(list, i)
	}
	return list, err
}

// observe reports the figures of a Group.
func (c *collector) observe(o metric.Observer, attributes []attribute.KeyValue, f figures) {
	c.mu.Lock()
	defer c.mu.Unlock()
	report(c, o, c.group, attributes, f)
	for name, p := range f.Policies {
		report(c, o, c.policy, append(slices.Clip(attributes), text(policyKey, name)), p)
	}
	for name, n := range f.Nodes {
		report(c, o, c.node, append(slices.Clip(attributes), server(name)...), n)
	}
}

func report[T any](c *collector, o metric.Observer, all []instrument[T], attributes []attribute.KeyValue, of T) {
	for _, i := range all {
		i.read(of, func(value float64, more ...attribute.KeyValue) {
			set := attribute.NewSet(append(slices.Clip(attributes), more...)...)
			if i.kind == counter {
				value = c.neverLess(series{i.name, set.Equivalent()}, value)
			}
			o.ObserveFloat64(i.Float64Observable, value, metric.WithAttributeSet(set))
		})
	}
}

// neverLess returns value, or what an earlier collection reported if that was more. Stats is no snapshot: a figure can
// fall by the few decisions that were under way, and by tokens that were refunded. A counter that falls would be taken
// for a restart.
func (c *collector) neverLess(s series, value float64) float64 {
	value = max(value, c.highest[s])
	c.highest[s] = value
	return value
}
