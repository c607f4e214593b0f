package tiered_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/awake"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
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
			g, err := tiered.NewGroup(store, nil)
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
		ok(t, l.Group().Ping(nil))
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

// With the client that services have, the log names the cause of an outage, and says once that hooks see nothing.
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
	clock := awake.New(t)
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

// While nothing is sent to a node, whoever is told so is told why: it is known.
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
