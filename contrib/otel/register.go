// Package otellimit exports the figures of a limiter as OpenTelemetry metrics, and puts refusals
// and waits on spans.
//
//	_, err := otellimit.Register(otel.GetMeterProvider(), limiter.Group())
//
// docs/metrics.md explains the metrics and the events. No attribute is ever a key: there are
// as many series as policies and Redis nodes times a constant.
package otellimit

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/metric"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/metrics"
)

// scope is the name of the Meter.
const scope = "github.com/tiered-limiter/tiered-limiter/contrib/otel"

// Register exports the figures of a Group through a MeterProvider. It is an error if one of them is
// nil. Register a Group only once, because OpenTelemetry adds figures with the same attributes.
// [RegisterGroups] is for several Groups.
//
// A collection calls [tiered.Group.Stats] once, which walks all keys of the process. Nothing is
// counted between collections, so decisions cost the same as without metrics. Collections may be
// concurrent, and never ask Redis. They work after the Group is closed, so that the last export has
// the tokens that Close returned. Unregister ends them.
//
// OpenTelemetry has no asynchronous histogram. Each histogram becomes three up-down counters that
// never fall: how many durations were up to the seconds in the attribute "le", how many there were,
// and their sum. In Prometheus they are the series of a histogram. They are no counters, because an
// exporter for Prometheus would add "_total" to the names. A metric.Producer of the SDK could yield
// histograms. But it must be there before the MeterProvider, views do not apply to it, and it does
// not know which temporality is wanted.
func Register(provider metric.MeterProvider, group *tiered.Group) (metric.Registration, error) {
	reader, err := metrics.NewReader(group)
	return register(provider, reader, err)
}

// RegisterGroups is [Register] for several Groups in one process. The attribute "group" of each
// series is the Group's name in the map. A name must be 1 to 128 bytes of printable UTF-8, and a
// Group must not be nil. The error names all that is wrong.
func RegisterGroups(provider metric.MeterProvider, groups map[string]*tiered.Group) (metric.Registration, error) {
	reader, err := metrics.NewGroupsReader(groups)
	return register(provider, reader, err)
}

// register registers one callback for all instruments. err says why there is no reader.
func register(provider metric.MeterProvider, reader *metrics.Reader, err error) (metric.Registration, error) {
	if provider == nil {
		err = errors.Join(errors.New("otellimit: the MeterProvider is nil: must be set"), err)
	}
	if err != nil {
		return nil, err
	}
	meter := provider.Meter(scope)
	instruments, all, err := instrumentsOf(meter, reader.Metrics())
	if err != nil {
		return nil, fmt.Errorf("otellimit: %w", err)
	}
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for s := range reader.Samples() {
			instruments[s.Metric].observe(o, s)
		}
		return nil
	}, all...)
}
