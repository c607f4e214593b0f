package tiered_test

import (
	"context"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
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
		ContextTimeoutEnabled: true, ReadTimeout: time.Minute, WriteTimeout: time.Minute, // or hooks see nothing
	}))
	tb.Cleanup(func() { _ = client.Close() })
	c := &coldLoad{counted: new(pipelines), keys: make([]string, 100_000)}
	client.AddHook(c.counted)
	var err error
	c.limiter, err = tiered.New(remote.NewRedis(client, nil), tiered.Policy{
		Name:  "api",
		Limit: tiered.PerSecond(100).WithBurst(200),
	},
		&tiered.Options{MaxKeys: 2000, Budget: 10 * time.Second, Timeout: 10 * time.Second}) // a busy machine is slow
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.limiter.Close(context.Background()) })
	for i := range c.keys {
		c.keys[i] = "user" + strconv.Itoa(i)
	}
	return c
}

// decide has callers make decisions, each about the next key. It reports how many did not come from Redis.
func (c *coldLoad) decide(callers, decisions int) (others int64) {
	var all sync.WaitGroup
	var left, wrong atomic.Int64
	left.Store(int64(decisions))
	for range callers {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				key := c.keys[int(c.next.Add(1))%len(c.keys)]
				if c.limiter.Allow(context.Background(), key).Tier != tiered.Remote {
					wrong.Add(1)
				}
			}
		})
	}
	all.Wait()
	return wrong.Load()
}

// TestColdPathAllocations bounds what a decision about a key without a lease allocates, in the limiter and in go-redis.
// A part is for the call and a part for its pipeline. How many callers share a pipeline depends on the machine, so the
// least of some rounds counts.
func TestColdPathAllocations(t *testing.T) {
	if underRace {
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
			shared = max(shared, decisions/float64(c.counted.sent.Load()-pipelines))
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
