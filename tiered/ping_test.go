package tiered_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Ping finds a right that a policy needs and the user lacks, before a request does. A call that is
// refused concerns its own key alone.
func TestPingFindsAMissingRight(t *testing.T) {
	server := redistest.StartOpen(t)
	args := []any{"acl", "setuser", "few", "on", ">x"}
	for _, right := range redistest.Rights(t, redistest.OnServer) { // those of windows are missing
		args = append(args, right)
	}
	command(t, server.Client(), args...)
	address := url.URL{Scheme: "redis", User: url.UserPassword("few", "x"), Host: server.Addr}
	var log logged
	options := &tiered.Options{Logger: log.logger(), Budget: second, Timeout: second}
	group := must(tiered.NewGroup(open(t, address.String()), options))
	defer func() { ok(t, group.Close(ctx)) }()
	buckets := must(group.NewLimiter(tiered.Policy{
		Name: "buckets", Limit: tiered.PerHour(1000), Lease: neverLeased,
	}))
	ok(t, group.Ping(ctx))
	windows := must(group.NewLimiter(tiered.Policy{
		Name: "windows", Limit: tiered.Limit{Tokens: 10, Per: ms}, Algorithm: tiered.SlidingLog, FailMode: tiered.FailClosed,
	}))
	err := group.Ping(ctx)
	for _, text := range []string{"NOPERM", "unlink", "docs/redis.md"} {
		if !errors.Is(err, tiered.ErrUnavailable) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %s", err, text)
		}
	}

	refused := 0
	soon(t, "a log that is old is not refused", second*10, func() bool {
		if windows.Allow(ctx, "old").Reason == tiered.Unavailable {
			refused++
		}
		if d := buckets.Allow(ctx, "other"); d.Tier != tiered.Remote {
			t.Errorf("another policy's key: %+v", d)
		}
		return refused > 5
	})
	n := group.Stats().Nodes[server.Addr]
	if n.Outages.Count != 0 || n.Calls.Misconfigured == 0 {
		t.Errorf("%+v", n)
	}
	if text := log.String(); strings.Count(text, "redis refuses calls") != 1 || !strings.Contains(text, "class=refused") {
		t.Errorf("the log: %s", text)
	}
}

// A client for one server that has a node of a Cluster: Ping says what to use instead, and so does
// the log. The node's own keys work.
func TestPingAtANodeOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2)
	var log logged
	l := limiter(t, watch.Damaged{Store: open(t, "redis://"+c.Servers[0].Addr)},
		tiered.Policy{Limit: tiered.PerHour(10), Lease: neverLeased, FailMode: tiered.FailClosed},
		&tiered.Options{Logger: log.logger(), Budget: second, Timeout: second})
	if err := l.Group().Ping(ctx); !errors.Is(err, remote.ErrClusterNode) || !errors.Is(err, tiered.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	here, elsewhere := 0, 0
	for i := range 40 {
		switch d := l.Allow(ctx, fmt.Sprint("user", i)); d.Reason {
		case tiered.Granted:
			here++
		case tiered.Unavailable:
			elsewhere++
		default:
			t.Errorf("%+v", d)
		}
	}
	if here == 0 || elsewhere == 0 || node(l).Outages.Count > 0 {
		t.Errorf("%d keys here, %d elsewhere, %+v", here, elsewhere, node(l))
	}
	soon(t, "no line says what to use", 10*second, func() bool {
		return strings.Contains(log.String(), "redis refuses calls") && strings.Contains(log.String(), "redis+cluster://")
	})
}
