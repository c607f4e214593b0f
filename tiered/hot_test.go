package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// hot returns a Limiter that holds a lease of key, big enough for a benchmark.
func hot(tb testing.TB, key string) *tiered.Limiter {
	tb.Helper()
	l, err := tiered.New(remote.NewMemory(), tiered.Policy{Name: "api", Limit: tiered.PerSecond(1 << 36)}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close(context.Background()) })
	warmed(tb, func() bool { return l.Allow(context.Background(), key).Tier == tiered.Local })
	return l
}

// warmed asks until a decision comes from a lease, by a real clock.
func warmed(tb testing.TB, asks func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(10 * time.Second); !asks(); {
		if time.Now().After(deadline) {
			tb.Fatal("no lease within 10 s")
		}
	}
}

// allocates is how often a decision from a lease does.
func allocates(t *testing.T, l *tiered.Limiter, key string) float64 {
	t.Helper()
	ctx := context.Background()
	time.Sleep(300 * ms) // a real clock: the estimate has followed by now, and leases are long
	for range 100_000 {
		l.Allow(ctx, key)
	}
	return testing.AllocsPerRun(10_000, func() {
		if !l.Allow(ctx, key).Allowed {
			t.Fatal("refused")
		}
	})
}

func TestHotPathAllocatesNothing(t *testing.T) {
	if underRace {
		t.Skip("the race detector allocates")
	}
	ctx := context.Background()
	l := hot(t, "k")
	calls := l.Group().Stats().Nodes["memory"].Calls
	if n := allocates(t, l, "k"); n != 0 {
		t.Errorf("%v allocations per decision from a lease (and %d calls meanwhile)", n,
			l.Group().Stats().Nodes["memory"].Calls-calls)
	}

	d, err := tiered.New(remote.NewMemory(), tiered.Policy{Name: "api", Limit: tiered.PerDay(1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(ctx)
	d.Allow(ctx, "k")
	d.Allow(ctx, "k")
	if n := testing.AllocsPerRun(10_000, func() {
		if d.Allow(ctx, "k").Reason != tiered.Limited {
			t.Fatal("not refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations per decision that is known to be refused", n)
	}
}

// There are more policies than places for hot keys, all with the same key. Each decision is by its own policy.
func TestPoliciesThatShareAHotPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := tiered.NewGroup(remote.NewMemory(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close(context.Background())
		const policies, asked = 40, 50
		for i := range policies {
			if _, err := g.NewLimiter(tiered.Policy{
				Name:  fmt.Sprintf("p%d", i),
				Limit: tiered.PerDay(int64(i + 1)),
			}); err != nil {
				t.Fatal(err)
			}
		}
		admitted := map[string]int{}
		for range asked {
			for i, l := range tiered.Limiters(g).Present() {
				for _, key := range []string{"k", "l"} {
					d := l.Allow(context.Background(), key)
					if d.Burst != int64(i+1) || d.Key != key {
						t.Fatalf("%+v of policy %d", d, i)
					}
					if d.Allowed {
						admitted[d.Policy+key]++
					}
					time.Sleep(8 * time.Nanosecond) // after 128 decisions, one is chosen
				}
			}
		}
		for i := range policies {
			for _, key := range []string{"k", "l"} {
				if n := admitted[fmt.Sprintf("p%d%s", i, key)]; n != i+1 {
					t.Errorf("policy %d admitted %d of %s, want %d", i, n, key, i+1)
				}
			}
		}
		if s := g.Stats(); s.Keys != 2*policies {
			t.Errorf("%d keys, want %d", s.Keys, 2*policies)
		}
	})
}

func BenchmarkAllow(b *testing.B) {
	ctx := context.Background()
	l := hot(b, "k")
	b.ReportAllocs()
	waited := 0
	for b.Loop() {
		if d := l.Allow(ctx, "k"); d.Tier != tiered.Local {
			waited++
		}
	}
	b.ReportMetric(float64(waited)/float64(b.N), "waited/op")
}

func BenchmarkAllowParallel(b *testing.B) {
	ctx := context.Background()
	l := hot(b, "k")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l.Allow(ctx, "k")
		}
	})
}

func BenchmarkRefused(b *testing.B) {
	ctx := context.Background()
	l, err := tiered.New(remote.NewMemory(), tiered.Policy{
		Name:  "api",
		Limit: tiered.Limit{Tokens: 1, Per: math.MaxInt64 / 100 / 1000 * 1000},
	}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close(ctx)
	l.Allow(ctx, "k")
	b.ReportAllocs()
	for b.Loop() {
		if l.Allow(ctx, "k").Allowed {
			b.Fatal("admitted")
		}
	}
}

func BenchmarkBare(b *testing.B) {
	l := rate.NewLimiter(1e9, 1<<30)
	for b.Loop() {
		l.Allow()
	}
}

func BenchmarkBareParallel(b *testing.B) {
	l := rate.NewLimiter(1e9, 1<<30)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l.Allow()
		}
	})
}

func BenchmarkAlone(b *testing.B) {
	for _, mode := range []tiered.FailMode{tiered.FailLocal, tiered.FailOpen, tiered.FailClosed} {
		b.Run(mode.String(), func(b *testing.B) {
			ctx := context.Background()
			store := remote.NewMemory()
			l, err := tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerSecond(1 << 36), FailMode: mode},
				&tiered.Options{Processes: 1})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = l.Close(ctx) })
			store.Fail(errors.New("down"))
			for l.Allow(ctx, "k").Tier != tiered.Failover || l.Group().Stats().Nodes["memory"].Breaker != "open" {
				time.Sleep(10 * ms)
			}
			b.ReportAllocs()
			for b.Loop() {
				if d := l.Allow(ctx, "k"); d.Tier != tiered.Failover {
					b.Fatalf("%+v", d)
				}
			}
		})
	}
}
