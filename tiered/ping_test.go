package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/lua"
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
	soon(t, "no line says that calls are refused", 10*second, func() bool { return log.String() != "" })
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

// swallowing is a store whose network swallows everything while it is silent. A call ends by its
// time or by its context.
type swallowing struct {
	remote.Store
	silent atomic.Bool
}

// swallows waits in vain if the network is silent.
func (s *swallowing) swallows(ctx context.Context, timeout time.Duration) bool {
	if !s.silent.Load() {
		return false
	}
	select {
	case <-ctx.Done():
	case <-time.After(timeout):
	}
	return true
}

func (s *swallowing) Run(
	ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result,
) {
	if !s.swallows(ctx, timeout) {
		s.Store.Run(ctx, timeout, calls, results)
		return
	}
	for i := range calls {
		results[i] = remote.Result{Err: io.EOF}
	}
}

func (s *swallowing) Presence(
	ctx context.Context, timeout time.Duration, n remote.Node, p remote.Process,
) (remote.Census, error) {
	if s.swallows(ctx, timeout) {
		return remote.Census{}, io.EOF
	}
	return s.Store.Presence(ctx, timeout, n, p)
}

func (s *swallowing) Inspect(
	ctx context.Context, timeout time.Duration, n remote.Node, algorithms []lua.Algorithm,
) error {
	if s.swallows(ctx, timeout) {
		return io.EOF
	}
	return s.Store.Inspect(ctx, timeout, n, algorithms)
}

// Ping never takes longer than it says, whatever this process is doing at the same time: a report
// of its presence may be under way. It finds Redis back at once.
func TestPingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 1))
		longest := time.Duration(0)
		for range 400 {
			s := &swallowing{Store: remote.NewMemory()}
			l := must(tiered.New(s, tiered.Policy{Name: "api", Limit: tiered.PerSecond(10)},
				&tiered.Options{Logger: slog.New(slog.DiscardHandler)}))
			pause := func(most time.Duration) { time.Sleep(time.Duration(random.Int64N(int64(most)))) }
			pause(5 * second)
			s.silent.Store(true)
			pause(60 * second)
			for range random.IntN(3) { // requests, and a reload, which reports at once
				l.Allow(ctx, "user")
				pause(second)
			}
			if random.IntN(2) == 0 {
				ok(t, l.Group().SetPolicies([]tiered.Policy{l.Policy(), {Name: "new", Limit: tiered.PerSecond(1)}}))
			}
			pause(2 * second)
			begun := time.Now()
			if err := l.Group().Ping(ctx); err == nil {
				t.Error("Ping hears somebody in a black hole")
			}
			longest = max(longest, time.Since(begun))

			s.silent.Store(false)
			time.Sleep(4 * second) // what is under way ends, and the breaker lets a probe through
			begun = time.Now()
			if err := l.Group().Ping(ctx); err != nil || time.Since(begun) > 0 {
				t.Errorf("Redis is back, and Ping says %v after %v", err, time.Since(begun))
			}
			ok(t, l.Close(ctx))
		}
		if longest > 2100*ms {
			t.Errorf("Ping took %v", longest)
		}
	})
}
