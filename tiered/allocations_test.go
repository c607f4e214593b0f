package tiered_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/race"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// pipelines is a hook that counts pipelines of scripts.
type pipelines struct{ sent atomic.Int64 }

func (*pipelines) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (p *pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if strings.HasPrefix(cmds[0].Name(), "eval") {
			p.sent.Add(1)
		}
		return next(ctx, cmds)
	}
}

// coldLoad is a Limiter on a real Redis, and callers of keys that it has no lease of.
type coldLoad struct {
	limiter *tiered.Limiter
	counted *pipelines
	keys    []string
	next    atomic.Int64
}

func newColdLoad(tb testing.TB) *coldLoad {
	server := redistest.Start(tb)
	client := redis.NewClient(server.Options(redis.Options{
		ContextTimeoutEnabled: true, // or hooks see nothing
	}))
	tb.Cleanup(func() { _ = client.Close() })
	c := &coldLoad{counted: new(pipelines), keys: make([]string, 100_000)}
	client.AddHook(c.counted)
	var err error
	c.limiter, err = tiered.New(remote.NewRedis(client, nil), tiered.Policy{
		Name: "api", Limit: tiered.PerSecond(100).WithBurst(200),
	},
		&tiered.Options{MaxKeys: 2000, Budget: 10 * time.Second, Timeout: 10 * time.Second}) // a busy machine is slow
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.limiter.Close(ctx) })
	for i := range c.keys {
		c.keys[i] = "user" + strconv.Itoa(i)
	}
	return c
}

// decide has callers make decisions, each about the next key. It reports how many did not come from
// Redis.
func (c *coldLoad) decide(callers, decisions int) (others int64) {
	var all sync.WaitGroup
	var left, wrong atomic.Int64
	left.Store(int64(decisions))
	for range callers {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				key := c.keys[int(c.next.Add(1))%len(c.keys)]
				if c.limiter.Allow(ctx, key).Tier != tiered.Remote {
					wrong.Add(1)
				}
			}
		})
	}
	all.Wait()
	return wrong.Load()
}

// TestColdPathAllocations bounds what a decision about a key without a lease allocates, in the
// limiter and in go-redis. A part is for the call and a part for its pipeline. How many callers
// share a pipeline depends on the machine, so the least of some rounds counts.
func TestColdPathAllocations(t *testing.T) {
	if race.On {
		t.Skip("the race detector allocates")
	}
	const decisions, rounds = 3000, 3
	c := newColdLoad(t)
	c.decide(1, 1000)
	for _, test := range []struct {
		callers, allocations, bytes int
		shared                      float64 // the calls of a pipeline without which the bounds say nothing
	}{
		{callers: 1, allocations: 17, bytes: 1100, shared: 1},
		{callers: 16, allocations: 10, bytes: 1000, shared: 4},
	} {
		least := [2]float64{1e9, 1e9}
		shared := 0.0
		for range rounds {
			var before, after runtime.MemStats
			pipelines := c.counted.sent.Load()
			runtime.ReadMemStats(&before)
			if n := c.decide(test.callers, decisions); n > 0 {
				t.Fatalf("%d of %d decisions did not come from Redis", n, decisions)
			}
			runtime.ReadMemStats(&after)
			sent := c.counted.sent.Load() - pipelines
			if sent == 0 {
				t.Fatal("the hook saw no pipeline")
			}
			shared = max(shared, decisions/float64(sent))
			least[0] = min(least[0], float64(after.Mallocs-before.Mallocs)/decisions)
			least[1] = min(least[1], float64(after.TotalAlloc-before.TotalAlloc)/decisions)
		}
		t.Logf("%d callers: %.1f allocations, %.0f bytes, %.1f calls in a pipeline", test.callers, least[0], least[1],
			shared)
		if shared < test.shared {
			t.Logf("the machine is too busy for %d callers to share pipelines", test.callers)
			continue
		}
		if least[0] > float64(test.allocations) || least[1] > float64(test.bytes) {
			t.Errorf("%d callers: %.1f allocations of %.0f bytes, want at most %d of %d", test.callers, least[0],
				least[1], test.allocations, test.bytes)
		}
	}
}

// BenchmarkCold is a decision about a key without a lease.
func BenchmarkCold(b *testing.B) {
	c := newColdLoad(b)
	for _, callers := range []int{1, 16} {
		b.Run(strconv.Itoa(callers), func(b *testing.B) {
			b.ReportAllocs()
			c.decide(callers, b.N)
		})
	}
}

// hot returns a Limiter that holds a lease of key, big enough for a benchmark.
func hot(tb testing.TB, key string) *tiered.Limiter {
	tb.Helper()
	l := must(tiered.New(remote.NewMemory(), tiered.Policy{Name: "api", Limit: tiered.PerSecond(1 << 36)}, nil))
	tb.Cleanup(func() { _ = l.Close(ctx) })
	warmed(tb, func() bool { return l.Allow(ctx, key).Tier == tiered.Local })
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

// What a process decides by itself costs no allocation, however it is asked.
func TestDecisionsAtHomeAllocateNothing(t *testing.T) {
	if race.On {
		t.Skip("the race detector allocates")
	}
	ctx, much := context.Background(), tiered.PerSecond(1<<36)
	four := func(t *testing.T) (all []tiered.Use) { // each of a lease of its own
		l := hot(t, "k")
		for _, name := range []string{"user", "ip", "tenant"} {
			m := must(l.Group().NewLimiter(tiered.Policy{Name: name, Limit: much}))
			warmed(t, func() bool { return m.Allow(ctx, "k").Tier == tiered.Local })
			all = append(all, m.For("k"))
		}
		return append(all, l.For("k"))
	}
	refused := func(t *testing.T) []*tiered.Limiter { // the key of the first
		l := several(t, remote.NewMemory(), nil, direct("api", 1), direct("b", 1))
		for range 2 {
			l[0].Allow(ctx, "k")
		}
		return l
	}
	shares := func(also ...tiered.Limit) func(*testing.T) func() bool {
		return func(t *testing.T) func() bool {
			l := limiter(t, remote.NewMemory(), tiered.Policy{
				Limit: tiered.PerSecond(1 << 39).WithBurst(1 << 20).And(also...), Standing: 1.0 / 8,
			}, nil)
			g := tiered.Engine(l.Group())
			time.Sleep(settleShares)
			if !tiered.Core(l).Standing.Agreed.Load() {
				t.Fatal("the shares are not used")
			}
			poll, _ := g.Shares.Poll(g.Now(), func() string { return "m" })
			g.Shares.Accept(g.Now(), poll.Member, poll.Seq, lua.PollReply{Grant: lua.Pool, Members: 1, Epoch: 1})
			time.Sleep(10 * ms) // a real clock: the shares fill
			return func() bool {
				before := tiered.Core(l).Standing.Total()
				return l.Allow(ctx, "k").Allowed && tiered.Core(l).Standing.Total() > before
			}
		}
	}
	for name, prepare := range map[string]func(*testing.T) func() bool{
		"a lease": func(t *testing.T) func() bool {
			l := hot(t, "k")
			return func() bool { return l.Allow(ctx, "k").Allowed }
		},
		"a lease, by PerKey": func(t *testing.T) func() bool {
			l := hot(t, "k")
			set(t, l, func(p *tiered.Policy) { p.PerKey = func(string) tiered.Limit { return tiered.PerSecond(1 << 35) } })
			warmed(t, func() bool { d := l.Allow(ctx, "k"); return d.Tier == tiered.Local && d.Burst == 1<<35 })
			return func() bool { return l.Allow(ctx, "k").Allowed }
		},
		"four leases": func(t *testing.T) func() bool {
			uses := four(t)
			return func() bool { return tiered.All(uses[0], uses[1], uses[2], uses[3]).Allow(ctx).Allowed }
		},
		"four leases, each by itself": func(t *testing.T) func() bool {
			uses, each := four(t), make([]tiered.Decision, 4)
			return func() bool { tiered.All(uses...).AllowSeparately(ctx, each); return each[3].Allowed }
		},
		"a limit that is carried": func(t *testing.T) func() bool {
			l := hot(t, "k")
			return func() bool { return l.For("k").WithLimit(much).Allow(ctx).Allowed }
		},
		"a plan": func(t *testing.T) func() bool {
			p := tiered.Policy{Name: "p", Limit: tiered.PerSecond(1), Plans: map[string]tiered.Limit{"pro": much}}
			l := limiter(t, remote.NewMemory(), p, nil)
			warmed(t, func() bool { return l.For("k").WithPlan("pro").Allow(ctx).Tier == tiered.Local })
			return func() bool { return l.For("k").WithPlan("pro").Allow(ctx).Allowed }
		},
		"no limit": func(t *testing.T) func() bool {
			l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.Unlimited()}, nil)
			return func() bool { return l.Allow(ctx, "k").Allowed }
		},
		"a refusal that is known": func(t *testing.T) func() bool {
			l := refused(t)[0]
			return func() bool { return l.Allow(ctx, "k").Reason == tiered.Limited }
		},
		"a refusal that is known of one of two": func(t *testing.T) func() bool {
			l := refused(t)
			return func() bool { return tiered.All(l[0].For("k"), l[1].For("k")).Allow(ctx).Reason == tiered.Limited }
		},
		"a standing share":              shares(),
		"standing shares of two limits": shares(tiered.PerMinute(1 << 39).WithBurst(1 << 20)),
	} {
		run := func(t *testing.T, name string, f func(*testing.T)) { t.Run(name, f) }
		if strings.Contains(name, "standing") { // the processes agree on shares after a while
			run = bubble
		}
		run(t, name, func(t *testing.T) {
			decide := prepare(t)
			if name != "no limit" && !strings.Contains(name, "known") {
				time.Sleep(100 * ms) // a real clock: the estimate has followed by now, and leases are long
			}
			for range 100_000 {
				decide()
			}
			wrong := 0
			if n := testing.AllocsPerRun(10_000, func() {
				if !decide() {
					wrong++
				}
			}); n != 0 || wrong > 0 {
				t.Errorf("%v allocations per decision, and %d were not as is meant", n, wrong)
			}
		})
	}
}

func BenchmarkAllow(b *testing.B) {
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
	l := hot(b, "k")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l.Allow(ctx, "k")
		}
	})
}

func BenchmarkRefused(b *testing.B) {
	l := must(tiered.New(remote.NewMemory(), tiered.Policy{
		Name: "api", Limit: tiered.Limit{Tokens: 1, Per: math.MaxInt64 / 100 / 1000 * 1000},
	}, nil))
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
	for _, mode := range failModes {
		b.Run(mode.String(), func(b *testing.B) {
			store := remote.NewMemory()
			l := must(tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerSecond(1 << 36), FailMode: mode},
				&tiered.Options{Processes: 1}))
			b.Cleanup(func() { _ = l.Close(ctx) })
			store.Fail(errors.New("down"))
			for l.Allow(ctx, "k").Tier != tiered.Failover || node(l).Outages.Breaker != "open" {
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
