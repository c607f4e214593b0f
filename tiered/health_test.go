package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ranclock"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Ping says before any traffic what is wrong with an address, a user or a client.
func TestPing(t *testing.T) {
	s := redistest.StartOpen(t)
	if err := s.Client().Do(t.Context(), "ACL", "SETUSER", "reader", "on", ">x", "~*", "+evalsha", "+eval",
		"+time").Err(); err != nil {
		t.Fatal(err)
	}
	free := redistest.StartOpen(t)
	free.Kill()
	for _, c := range []struct {
		name, url string
		want      string // in the error; "" for none
	}{
		{"well", "redis://" + s.Addr, ""},
		{"nobody listens", "redis://" + free.Addr, "connection refused"},
		{"a name with a typo", "redis://localhost.invalid:6379", "no such host"},
		{"a wrong password", "redis://reader:y@" + s.Addr, "disabled. (the client's user and password must be those of Redis)"},
		{"a missing right", "redis://reader:x@" + s.Addr, "(the client's user must have the rights that docs/redis.md lists)"},
	} {
		for _, own := range []bool{true, false} {
			var store remote.Store = open(t, c.url)
			if !own { // a client as services have it
				o := must(redis.ParseURL(c.url))
				client := redis.NewClient(o)
				t.Cleanup(func() { _ = client.Close() })
				store = remote.NewRedis(client, nil)
			}
			o := &tiered.Options{}
			if c.want == "no such host" {
				o.Timeout = 2 * time.Second // a resolver may take longer than a call may last
			}
			g, err := tiered.NewGroup(store, o)
			if err != nil {
				t.Fatal(err)
			}
			err = g.Ping(t.Context())
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
				!errors.Is(err, tiered.ErrUnavailable)) {
				t.Errorf("%s, own client %v: %v, want %q", c.name, own, err, c.want)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			_ = g.Close(ctx)
			cancel()
			if err := g.Ping(t.Context()); !errors.Is(err, engine.ErrClosed) {
				t.Errorf("closed: %v", err)
			}
		}
	}
}

// A check of readiness fails during an outage, and does not load a Redis that is down.
func TestPingInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		l := limiter(t, store, tiered.Policy{Name: "p", Limit: tiered.PerSecond(100)}, nil)
		ok(t, l.Group().Ping(nil)) //nolint:staticcheck // a nil context is allowed
		store.Fail(errors.New("down"))
		for range 200 {
			l.AllowN(ctx, "k", 90)
			time.Sleep(10 * time.Millisecond)
		}
		if err := l.Group().Ping(ctx); err == nil {
			t.Error("an outage goes unnoticed")
		}
		store.Fail(nil)
		time.Sleep(5 * time.Second)
		ok(t, l.Group().Ping(ctx))
	})
}

// With the client that services have, the log names the cause of an outage, and says once that
// hooks see nothing.
func TestLogOfADefaultClient(t *testing.T) {
	server := redistest.StartOpen(t)
	server.Kill()
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = client.Close() })
	outage := func() string { // what is logged of it
		var log logged
		l := must(tiered.New(remote.NewRedis(client, nil), tiered.Policy{Name: "p", Limit: tiered.PerSecond(10)},
			&tiered.Options{Logger: log.logger()}))
		soon(t, "a line of the outage", 20*time.Second, func() bool {
			l.Allow(t.Context(), "k")
			return strings.Contains(log.String(), "redis does not answer: the fail modes decide")
		})
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = l.Close(ctx)
		return log.String()
	}
	clock := ranclock.New(t)
	lines, disturbed := "", true
	for try := 0; try < 10 && disturbed; try++ {
		begun, ran := time.Now(), clock.Now()
		lines = outage()
		// The machine was busy elsewhere while the cause was looked for.
		disturbed = strings.Contains(lines, "longer than its timeout") &&
			time.Since(begun)-clock.Since(ran) > tiered.MaxDial/2
	}
	if !strings.Contains(lines, "connection refused") || strings.Contains(lines, "longer than its timeout") {
		t.Errorf("the cause is not named: %s", lines)
	}
	if strings.Count(lines, "hooks of the redis client") != 1 {
		t.Errorf("want one line about hooks: %s", lines)
	}
}

// Without a Logger the lines go where the program's own go.
func TestDefaultLogger(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	var log logged
	slog.SetDefault(log.logger())
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		l := must(tiered.New(store, tiered.Policy{Name: "p", Limit: tiered.PerSecond(10)}, nil))
		store.Fail(errors.New("down"))
		l.Allow(ctx, "k")
		time.Sleep(time.Second)
		_ = l.Close(ctx)
	})
	if !strings.Contains(log.String(), "redis does not answer") {
		t.Errorf("%q", log.String())
	}
}

// An error that says that nothing is sent to a node also says why.
func TestWhyNothingIsSent(t *testing.T) {
	for _, cause := range []error{replied("WRONGPASS invalid username-password pair or user is disabled."), errors.New("dial tcp 10.0.0.7:6379: connect: connection refused")} {
		synctest.Test(t, func(t *testing.T) {
			store, ctx := remote.NewMemory(), context.Background()
			g := must(tiered.NewGroup(store, &tiered.Options{Logger: slog.New(slog.DiscardHandler)}))
			defer func() { _ = g.Close(ctx) }()
			l := must(g.NewLimiter(tiered.Policy{Name: "api", Limit: tiered.PerMinute(100)}))
			store.Fail(cause)
			asked := time.Now()
			for g.Stats().Nodes["memory"].Outages.Breaker != "open" {
				if l.Allow(ctx, "ann"); time.Since(asked) > time.Minute {
					t.Fatal("the breaker does not open")
				}
				time.Sleep(100 * time.Millisecond)
			}
			for range 3 { // between probes, and when one is due
				for name, err := range map[string]error{
					"Ping": g.Ping(ctx), "Reset": l.Reset(ctx, "ann"), "Refund": l.Refund(ctx, "ann", 1),
				} {
					if !errors.Is(err, tiered.ErrUnavailable) || !errors.Is(err, cause) || !strings.Contains(err.Error(), cause.Error()) {
						t.Errorf("%s: %v, want the cause %q", name, err, cause)
					}
				}
				time.Sleep(2 * time.Second)
			}
		})
	}
}

const errFull = replied("OOM command not allowed when used memory > 'maxmemory'.")

// full is a store that may refuse to write: it answers what writes nothing, as a server does that
// is full, or a replica.
type full struct {
	*distant
	is       atomic.Bool
	together atomic.Bool // a pipeline held a denial and a refused write
}

func (s *full) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	if !s.is.Load() {
		s.distant.Run(ctx, timeout, calls, results)
		return
	}
	time.Sleep(s.trip)
	denied, refused := false, false
	for i := range calls {
		s.Memory.Clone().Run(ctx, timeout, calls[i:i+1], results[i:i+1]) // what it would do is forgotten
		if r := results[i].Reply; calls[i].Lease != "" && r.Code <= lua.Denied || r.Grant > 0 {
			results[i], refused = remote.Result{Err: errFull}, true
		} else if r.Code == lua.Denied {
			denied = true
		}
	}
	if denied && refused {
		s.together.Store(true)
	}
}

func (s *full) Presence(
	ctx context.Context, timeout time.Duration, n remote.Node, p remote.Process,
) (remote.Census, error) {
	if s.is.Load() {
		time.Sleep(s.trip)
		return remote.Census{}, errFull
	}
	return s.distant.Presence(ctx, timeout, n, p)
}

// A store that cannot write does not decide. It may still deny direct takes, because that writes
// nothing. The fail mode decides those, and they do not count as a healthy answer. The store
// decides again as soon as it has written.
func TestStoreThatCannotWriteDoesNotDecide(t *testing.T) {
	for mode, reason := range map[tiered.FailMode]tiered.Reason{
		tiered.FailOpen: tiered.Open, tiered.FailLocal: tiered.Fallback, tiered.FailClosed: tiered.Unavailable,
	} {
		for _, together := range []bool{true, false} {
			bubble(t, fmt.Sprintf("%v, in one pipeline %t", mode, together), func(t *testing.T) {
				store := &full{distant: newDistant(ms)}
				p := tiered.Policy{Name: "api", Limit: tiered.PerDay(10), FailMode: mode, Lease: neverLeased}
				other := limiter(t, store, p, nil)
				for i := range 20 {
					want(t, other.AllowN(ctx, fmt.Sprint("used up ", i), 10), tiered.Granted)
				}
				l := limiter(t, store, p, nil) // which knows nothing of that
				want(t, l.Allow(ctx, "k"), tiered.Granted)
				time.Sleep(10 * ms)
				guard := tiered.Dispatch(l.Group()).Nodes()[0]
				asked := 0
				exhausted := func() {
					t.Helper()
					d := l.Allow(ctx, fmt.Sprint("used up ", asked))
					if asked++; d.Reason != reason {
						t.Errorf("%+v, want %v", d, reason)
					}
				}

				store.is.Store(true)
				if together {
					if d := tiered.All(l.For("fresh"),
						l.For("used up 18")).Allow(ctx); d.Reason != reason || !store.together.Load() {
						t.Errorf("%+v, in one pipeline %t", d, store.together.Load())
					}
					exhausted()
				} else {
					l.Allow(ctx, "fresh")
					exhausted()
				}
				exhausted()
				exhausted()
				if guard.State() == failover.Closed {
					t.Error("the breaker is closed")
				}
				for range 100 {
					if time.Sleep(20 * ms); guard.State() == failover.Closed {
						t.Fatal("the breaker closed")
					}
					l.Allow(ctx, "used up 0")
				}

				store.is.Store(false)
				time.Sleep(5 * second) // the next presence at the latest
				want(t, l.Allow(ctx, "used up 19"), tiered.Limited)
				books(t, l.Group())
			})
		}
	}
}
