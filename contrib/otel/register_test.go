package otellimit_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/metric"

	otellimit "github.com/tiered-limiter/tiered-limiter/contrib/otel"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// What cannot be registered is an error that names all that is wrong, and registers nothing.
func TestBadArguments(t *testing.T) {
	provider, reader := meter()
	g := newGroup(t, remote.NewMemory())
	several := func(p metric.MeterProvider, groups map[string]*tiered.Group) error {
		_, err := otellimit.RegisterGroups(p, groups)
		return err
	}
	_, nilGroup := otellimit.Register(provider, nil)
	_, nilProvider := otellimit.Register(nil, g)
	_, nilBoth := otellimit.Register(nil, nil)
	const (
		noGroup    = "metrics: the Group is nil: must be set"
		noProvider = "otellimit: the MeterProvider is nil: must be set"
	)
	for _, c := range []struct {
		err  error
		want string
	}{
		{nilGroup, noGroup},
		{nilProvider, noProvider},
		{nilBoth, noProvider + "\n" + noGroup},
		{several(provider, nil), "metrics: there are 0 Groups: must be 1 or more"},
		{several(nil, map[string]*tiered.Group{"a": g}), noProvider},
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
	registration := fatal.Get(otellimit.Register(provider, g))(t)
	testgroup.Of(t, g, "p").Allow(t.Context(), "key-ann")
	fatal.If(t, g.Close(t.Context()))
	spent := `tiered.leased_tokens{outcome="spent", policy="p"}`
	if n := values(t, reader)[spent]; n != 1 {
		t.Errorf("%v tokens are spent after Close", n)
	}
	fatal.If(t, registration.Unregister())
	if all := values(t, reader); len(all) > 0 {
		t.Errorf("%d series after Unregister", len(all))
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

// All instruments share one callback, and so one Stats for each Group. Each Group has series of its
// own.
func TestSeveralGroups(t *testing.T) {
	provider, reader := meter()
	c := &counting{MeterProvider: provider}
	byName := map[string]*tiered.Group{}
	for i, name := range []string{"users", "jobs"} {
		byName[name] = newGroup(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerHour(10)})
		testgroup.Of(t, byName[name], "p").AllowN(t.Context(), "key-ann", int64(i+1))
	}
	fatal.Get(otellimit.RegisterGroups(c, byName))(t)
	if all := collect(t, reader); c.callbacks != 1 || c.instruments < len(all) || len(all) < 20 {
		t.Errorf("%d callbacks, the last for %d instruments; %d have values", c.callbacks, c.instruments, len(all))
	}
	all := values(t, reader)
	for name, want := range map[string]float64{"users": 1, "jobs": 2} {
		if n := all[`tiered.requested_tokens{group="`+name+`", policy="p", reason="granted"}`]; n != want {
			t.Errorf("%s: %v tokens, want %v", name, n, want)
		}
	}
	for series := range all {
		if !strings.Contains(series, "group=") {
			t.Errorf("%s has no Group", series)
		}
	}
}

// named is a store whose only node has a name of the test.
type named struct {
	*remote.Memory
	node remote.Node
}

func (s named) Node(string) remote.Node                             { return s.node }
func (s named) TableNode() remote.Node                              { return s.node }
func (s named) Nodes() []remote.Node                                { return []remote.Node{s.node} }
func (s named) Locate(context.Context, string) (remote.Node, error) { return s.node, nil }

// The name of a node is an address, by the semantic conventions.
func TestServer(t *testing.T) {
	for name, want := range map[string]string{
		"memory":            `server.address="memory"`,
		"10.0.0.7:6379":     `server.address="10.0.0.7", server.port="6379"`,
		"[2001:db8::1]:80":  `server.address="2001:db8::1", server.port="80"`,
		"redis.internal:1":  `server.address="redis.internal", server.port="1"`,
		"/run/redis.sock":   `server.address="/run/redis.sock"`,
		"host:65536":        `server.address="host:65536"`,
		"host:06379":        `server.address="host:06379"`,
		"host:redis":        `server.address="host:redis"`,
		"2001:db8::1":       `server.address="2001:db8::1"`,
		"unix:/run/x.sock":  `server.address="unix:/run/x.sock"`,
		"[2001:db8::1%eth0": `server.address="[2001:db8::1%eth0"`,
	} {
		all := values(t, registered(t, newGroup(t, named{remote.NewMemory(), remote.Node(name)})))
		series := fmt.Sprintf(`tiered.breaker_changes{node="%s", %s, state="open"}`, name, want)
		if _, ok := all[series]; !ok {
			t.Errorf("%s is not among %v", series, slices.Sorted(maps.Keys(all)))
		}
	}
}
