package otellimit_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	otellimit "github.com/tiered-limiter/tiered-limiter/contrib/otel"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// varying are series whose value is chance: see contrib/prometheus.
var varying = regexp.MustCompile(`^tiered_(build_info|standing_share_expiry_seconds|outage_seconds_total|redis_calls_total|` +
	`breaker_changes_total|unrecorded_presence_reports_total)\b`)

// An exporter for Prometheus makes of our metrics the series of contrib/prometheus, with the same
// values after the same outage. So one dashboard and one set of alerts fit both.
func TestSameAsPrometheus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		g := newGroup(t, store,
			tiered.Policy{Name: "login", Limit: tiered.PerMinute(10)},
			tiered.Policy{Name: "per-user", Limit: tiered.PerHour(100), Standing: 1.0 / 8},
		)
		for range 12 {
			testgroup.Of(t, g, "login").Allow(t.Context(), "key-ann")
		}
		store.Fail(errRefused)
		for range 12 {
			testgroup.Of(t, g, "login").Allow(t.Context(), "key-bob")
			time.Sleep(time.Second) // the breaker opens without a second request
		}
		store.Fail(nil)
		time.Sleep(3 * time.Second)

		got, want := exported(t, g), scraped(t)
		for _, name := range slices.Sorted(maps.Keys(want)) {
			if value, ok := got[name]; !ok || value != want[name] && !varying.MatchString(name) {
				t.Errorf("%s is %q, in contrib/prometheus %s", name, value, want[name])
			}
		}
		for name := range got {
			if _, ok := want[name]; !ok && !varying.MatchString(name) {
				t.Errorf("%s is not in contrib/prometheus", name)
			}
		}
		if len(want) < 150 {
			t.Errorf("only %d series", len(want))
		}
	})
}

// conventions are attributes that contrib/prometheus does not have.
var conventions = []string{"server_address", "server_port", "error_type"}

// exported returns the series that OpenTelemetry's exporter makes for Prometheus.
func exported(t *testing.T, g *tiered.Group) map[string]string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	exporter := fatal.Get(otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo(),
		otelprometheus.WithoutTargetInfo()))(t)
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	defer func() { _ = provider.Shutdown(context.Background()) }()
	fatal.Get(otellimit.Register(provider, g))(t)
	families := fatal.Get(registry.Gather())(t)
	all := map[string]string{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if strings.Contains(l.GetValue(), "key-") {
					t.Errorf("%s: a key is in %s", f.GetName(), l.GetValue())
				}
				if !slices.Contains(conventions, l.GetName()) {
					labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
				}
			}
			value := m.GetGauge().GetValue()
			if m.GetCounter() != nil {
				value = m.GetCounter().GetValue()
			}
			all[seriesName(f.GetName(), labels)] = fmt.Sprint(value)
		}
	}
	return all
}

// seriesName writes a series as PromQL does, with its labels in order.
func seriesName(name string, labels []string) string {
	slices.Sort(labels)
	if labels == nil {
		return name
	}
	return name + "{" + strings.Join(labels, ",") + "}"
}

// scraped returns the series of a scrape of contrib/prometheus in its testdata.
func scraped(t *testing.T) map[string]string {
	t.Helper()
	text := fatal.Get(os.ReadFile("../prometheus/testdata/scrape.txt"))(t)
	all := map[string]string{}
	label := regexp.MustCompile(`[a-z_]+="[^"]*"`)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") || strings.HasSuffix(line, " varies\n") {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		name, _, _ := strings.Cut(line[:i], "{")
		all[seriesName(name, label.FindAllString(line[:i], -1))] = strings.TrimSpace(line[i:])
	}
	return all
}

// Series also have what the semantic conventions name: the address of a node, and why something
// failed.
func TestConventions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		g := newGroup(t, store, tiered.Policy{Name: "p", Limit: tiered.PerHour(10)})
		store.Fail(errRefused)
		for range 12 {
			testgroup.Of(t, g, "p").Allow(t.Context(), "key-ann")
			time.Sleep(250 * time.Millisecond)
		}
		all := values(t, registered(t, g))
		for _, series := range []string{
			`tiered.outages{node="memory", server.address="memory"}`,
			`tiered.redis_calls{node="memory", outcome="answered", server.address="memory"}`,
			`tiered.redis_calls{error.type="other failure", node="memory", outcome="other failure", server.address="memory"}`,
			`tiered.last_outage_info{cause="unreachable", error.type="unreachable", node="memory", server.address="memory"}`,
		} {
			if _, ok := all[series]; !ok {
				t.Errorf("no %s", series)
			}
		}
	})
}
