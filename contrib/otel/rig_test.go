package otellimit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"

	otellimit "github.com/tiered-limiter/tiered-limiter/contrib/otel"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errRefused = errors.New("connection refused")
	silent     = slog.New(slog.DiscardHandler)
)

// meter returns a MeterProvider and its reader.
func meter(options ...sdkmetric.ManualReaderOption) (metric.MeterProvider, sdkmetric.Reader) {
	reader := sdkmetric.NewManualReader(options...)
	return sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), reader
}

// registered returns a reader of the metrics of a Group.
func registered(t testing.TB, g *tiered.Group) sdkmetric.Reader {
	t.Helper()
	provider, reader := meter()
	fatal.Get(otellimit.Register(provider, g))(t)
	return reader
}

// collect returns the metrics, sorted by name.
func collect(t testing.TB, reader sdkmetric.Reader) (all []metricdata.Metrics) {
	t.Helper()
	var collected metricdata.ResourceMetrics
	fatal.If(t, reader.Collect(context.Background(), &collected))
	for _, s := range collected.ScopeMetrics {
		if s.Scope.Name != "github.com/tiered-limiter/tiered-limiter/contrib/otel" {
			t.Errorf("the scope is %q", s.Scope.Name)
		}
		all = append(all, s.Metrics...)
	}
	slices.SortFunc(all, func(a, b metricdata.Metrics) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// points returns the kind of a metric and its values.
func points(t testing.TB, m metricdata.Metrics) (string, []metricdata.DataPoint[float64]) {
	t.Helper()
	switch data := m.Data.(type) {
	case metricdata.Gauge[float64]:
		return "gauge", data.DataPoints
	case metricdata.Sum[float64]:
		if data.IsMonotonic {
			return "counter", data.DataPoints
		}
		return "updown", data.DataPoints
	}
	t.Fatalf("%s is a %T", m.Name, m.Data)
	return "", nil
}

// values returns the value of each series: the name of the metric, and its attributes in braces.
func values(t testing.TB, reader sdkmetric.Reader) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for _, m := range collect(t, reader) {
		_, list := points(t, m)
		for _, p := range list {
			all[m.Name+describe(p.Attributes)] = p.Value
		}
	}
	return all
}

func describe(set attribute.Set) string {
	var pairs []string
	for _, a := range set.ToSlice() {
		pairs = append(pairs, fmt.Sprintf("%s=%q", a.Key, a.Value.String()))
	}
	return "{" + strings.Join(pairs, ", ") + "}"
}

// newGroup returns a Group of two processes with these policies.
func newGroup(t testing.TB, store remote.Store, policies ...tiered.Policy) *tiered.Group {
	t.Helper()
	return testgroup.New(t, store, &tiered.Options{Processes: 2, Logger: silent}, policies...)
}
