package otellimit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// What cannot be registered is an error that names all that is wrong, and registers nothing.
func TestBadArguments(t *testing.T) {
	provider, reader := meter()
	g := newGroup(t, remote.NewMemory())
	several := func(p metric.MeterProvider, groups map[string]*tiered.Group) error {
		_, err := RegisterGroups(p, groups)
		return err
	}
	_, nilGroup := Register(provider, nil)
	_, nilProvider := Register(nil, g)
	_, nilBoth := Register(nil, nil)
	const (
		noGroup    = "otellimit: the Group is nil: must be set"
		noProvider = "otellimit: the MeterProvider is nil: must be set"
		rule       = ": must be 1 to 128 bytes of printable UTF-8"
	)
	for _, c := range []struct {
		err  error
		want string
	}{
		{nilGroup, noGroup},
		{nilProvider, noProvider},
		{nilBoth, noProvider + "\n" + noGroup},
		{several(provider, nil), "otellimit: there are 0 Groups: must be 1 or more"},
		{several(nil, map[string]*tiered.Group{"a": g}), noProvider},
		{several(provider, map[string]*tiered.Group{"": g}), `otellimit: the name of a Group is ""` + rule},
		{several(provider, map[string]*tiered.Group{"a\nb": g}), `otellimit: the name of a Group is "a\nb"` + rule},
		{
			several(provider, map[string]*tiered.Group{"\xff": nil, "a": nil}),
			"otellimit: the Group \"a\" is nil: must be set\n" +
				`otellimit: the name of a Group is "\xff"` + rule + "\n" + `otellimit: the Group "\xff" is nil: must be set`,
		},
		{
			several(provider, map[string]*tiered.Group{strings.Repeat("x", 1000): g}),
			`otellimit: the name of a Group is "` + strings.Repeat("x", 128) + `"` + rule,
		},
	} {
		if c.err == nil || c.err.Error() != c.want {
			t.Errorf("%v, want %s", c.err, c.want)
		}
	}
	if all := collect(t, reader); len(all) > 0 {
		t.Errorf("%d metrics", len(all))
	}
}

// A closed Group still has its figures, for the last export. Unregister ends them.
func TestClosedGroup(t *testing.T) {
	provider, reader := meter()
	g := newGroup(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerSecond(10)})
	registration, err := Register(provider, g)
	if err != nil {
		t.Fatal(err)
	}
	limiter(t, g, "p").Allow(t.Context(), "key-ann")
	if err := g.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	spent := `tiered.leased_tokens{ratelimit.outcome="spent", ratelimit.policy="p"}`
	if n := values(t, reader)[spent]; n != 1 {
		t.Errorf("%v tokens are spent after Close", n)
	}
	if err := registration.Unregister(); err != nil {
		t.Fatal(err)
	}
	if all := values(t, reader); len(all) > 0 {
		t.Errorf("%d series after Unregister", len(all))
	}
}

// Each Group has series of its own.
func TestSeveralGroups(t *testing.T) {
	provider, reader := meter()
	groups := map[string]*tiered.Group{}
	for i, name := range []string{"users", "jobs"} {
		groups[name] = newGroup(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerHour(10)})
		for range i + 1 {
			limiter(t, groups[name], "p").Allow(t.Context(), "key-ann")
		}
	}
	if _, err := RegisterGroups(provider, groups); err != nil {
		t.Fatal(err)
	}
	all := values(t, reader)
	for name, want := range map[string]float64{"users": 1, "jobs": 2} {
		series := `tiered.requested_tokens{ratelimit.group="` + name + `", ratelimit.policy="p", ratelimit.reason="granted"}`
		if n := all[series]; n != want {
			t.Errorf("%s: %v tokens, want %v", name, n, want)
		}
	}
	for series := range all {
		if !strings.Contains(series, "ratelimit.group=") {
			t.Errorf("%s has no Group", series)
		}
	}
}

// counting is a MeterProvider that counts callbacks.
type counting struct {
	metric.MeterProvider
	callbacks, instruments int
}

func (c *counting) Meter(name string, o ...metric.MeterOption) metric.Meter {
	return &countingMeter{c.MeterProvider.Meter(name, o...), c}
}

type countingMeter struct {
	metric.Meter
	*counting
}

func (m *countingMeter) RegisterCallback(f metric.Callback, o ...metric.Observable) (metric.Registration, error) {
	m.callbacks++
	m.instruments = len(o)
	return m.Meter.RegisterCallback(f, o...)
}

// All instruments share one callback, and so one Stats for each Group.
func TestOneCallback(t *testing.T) {
	provider, reader := meter()
	c := &counting{MeterProvider: provider}
	store := remote.NewMemory()
	groups := map[string]*tiered.Group{"a": newGroup(t, store), "b": newGroup(t, store)}
	if _, err := RegisterGroups(c, groups); err != nil {
		t.Fatal(err)
	}
	all := len(groupFigures) + len(policyFigures) + len(nodeFigures)
	if c.callbacks != 1 || c.instruments != all {
		t.Errorf("%d callbacks, the last for %d of %d instruments", c.callbacks, c.instruments, all)
	}
	collect(t, reader)
}

// The number of series is that of policies and nodes times what docs/opentelemetry.md says.
func TestCardinality(t *testing.T) {
	for _, c := range []struct{ policies, nodes, want int }{
		{0, 0, 11}, {1, 0, 11 + 63}, {0, 1, 11 + 39}, {5, 3, 11 + 5*63 + 3*39},
	} {
		f := figures{standing: true, Stats: tiered.Stats{
			Policies: map[string]tiered.PolicyStats{}, Nodes: map[string]tiered.NodeStats{},
		}}
		for i := range c.policies {
			f.Policies[strconv.Itoa(i)] = tiered.PolicyStats{
				Waits: tiered.Histogram{Buckets: make([]int64, 66)}, Top: make([]tiered.RefusedKey, 20),
			}
		}
		for i := range c.nodes {
			f.Nodes[strconv.Itoa(i)] = tiered.NodeStats{
				RoundTrips: tiered.Histogram{Buckets: make([]int64, 66)}, Cause: "unreachable",
			}
		}
		if n := len(values(t, invented(t, &f))); n != c.want {
			t.Errorf("%d policies and %d nodes have %d series, want %d", c.policies, c.nodes, n, c.want)
		}
	}
}

// Names that no policy can have, and a node might, are valid attributes, and two of them stay two series.
func TestHostileNames(t *testing.T) {
	long := strings.Repeat("é", 1000)
	names := []string{
		"", "}", "a\nb", "a\\b", `a"b`, "\xff", "\xfe", "\xff\xfe", "a\x00b", "\u2028", long, long + "x",
		strings.Repeat("\xff", 200), "\xff:6379", "\xff:6380", ":6379", "a:b:6379", "host:99999", "host:06379",
		"host:6379", "host:",
	}
	f := figures{Stats: tiered.Stats{Policies: map[string]tiered.PolicyStats{}, Nodes: map[string]tiered.NodeStats{}}}
	for _, name := range names {
		f.Policies[name] = tiered.PolicyStats{Held: 1}
		f.Nodes[name] = tiered.NodeStats{Cause: name, Outages: 1}
	}
	f.Format, f.Script = "\xff", long
	n := map[string]int{}
	for _, m := range collect(t, invented(t, &f)) {
		_, list := points(t, m)
		n[m.Name] = len(list)
		for _, p := range list {
			for _, a := range p.Attributes.ToSlice() {
				if s := a.Value.String(); !utf8.ValidString(s) || len(s) > 200 || strings.ContainsAny(s, "\x00\n") {
					t.Errorf("%s: %s is %q", m.Name, a.Key, s)
				}
			}
		}
	}
	for _, metric := range []string{"tiered.held_tokens", "tiered.outages"} {
		if n[metric] != len(names) {
			t.Errorf("%d series of %s, want %d", n[metric], metric, len(names))
		}
	}
}

// The name of a node is an address, by the semantic conventions.
func TestServer(t *testing.T) {
	for name, want := range map[string]string{
		"memory":            `{server.address="memory"}`,
		"10.0.0.7:6379":     `{server.address="10.0.0.7", server.port="6379"}`,
		"[2001:db8::1]:80":  `{server.address="2001:db8::1", server.port="80"}`,
		"redis.internal:1":  `{server.address="redis.internal", server.port="1"}`,
		"/run/redis.sock":   `{server.address="/run/redis.sock"}`,
		"host:65536":        `{server.address="host:65536"}`,
		"host:06379":        `{server.address="host:06379"}`,
		"host:redis":        `{server.address="host:redis"}`,
		"2001:db8::1":       `{server.address="2001:db8::1"}`,
		"unix:/run/x.sock":  `{server.address="unix:/run/x.sock"}`,
		"[2001:db8::1%eth0": `{server.address="[2001:db8::1%eth0"}`,
	} {
		if got := describe(attribute.NewSet(server(name)...)); got != want {
			t.Errorf("%q is %s, want %s", name, got, want)
		}
	}
}

// A counter never falls, and none of its differences is negative.
func TestCountersNeverFall(t *testing.T) {
	f := figures{Stats: tiered.Stats{Policies: map[string]tiered.PolicyStats{}}}
	total := invented(t, &f)
	delta := invented(t, &f, sdkmetric.WithTemporalitySelector(
		func(sdkmetric.InstrumentKind) metricdata.Temporality { return metricdata.DeltaTemporality }))
	for _, step := range []struct{ spent, total, delta float64 }{{10, 10, 10}, {7, 10, 0}, {9, 10, 0}, {12, 12, 2}} {
		f.Policies["p"] = tiered.PolicyStats{Spent: int64(step.spent), Held: int64(step.spent)}
		spent := `tiered.leased_tokens{ratelimit.outcome="spent", ratelimit.policy="p"}`
		all, differences := values(t, total), values(t, delta)
		if all[spent] != step.total || differences[spent] != step.delta {
			t.Errorf("%v spent: %v and %v are reported, want %v and %v", step.spent, all[spent], differences[spent],
				step.total, step.delta)
		}
		if held := all[`tiered.held_tokens{ratelimit.policy="p"}`]; held != step.spent {
			t.Errorf("%v held, and %v are reported", step.spent, held)
		}
	}
}

// Collections by several readers may be concurrent, also with decisions.
func TestConcurrent(t *testing.T) {
	g := newGroup(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerHour(10)})
	readers := []sdkmetric.Reader{sdkmetric.NewManualReader(), sdkmetric.NewManualReader()}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(readers[0]), sdkmetric.WithReader(readers[1]))
	if _, err := Register(provider, g); err != nil {
		t.Fatal(err)
	}
	l := limiter(t, g, "p")
	done := make(chan error)
	for _, reader := range readers {
		go func() {
			var errs [20]error
			for i := range errs {
				l.Allow(context.Background(), fmt.Sprintf("key-%d", i))
				errs[i] = reader.Collect(context.Background(), new(metricdata.ResourceMetrics))
			}
			done <- errors.Join(errs[:]...)
		}()
	}
	for range readers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
