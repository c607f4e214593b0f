package benchmarks

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// zsetAcquire is a semaphore on Redis as it is usually written: a sorted set of holders by the time
// at which they end.
var zsetAcquire = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], now + 10000, ARGV[2])
redis.call('PEXPIRE', KEYS[1], 20000)
return 1`)

// semaphore gives a place of a key, or reports false.
type semaphore func(key string) (release func(), ok bool)

// TestRatiosAtOnce has the lines about what runs at the same time: calls to Redis per request, and
// how long a request waits for its answer, beside the sorted set. Each process serves 200 requests
// per second that take 5 ms.
func TestRatiosAtOnce(t *testing.T) {
	forRatios(t)
	const places, d = 5, 500 * time.Millisecond
	server := redistest.Start(t)
	ours := func(t *testing.T, name string) semaphore {
		store, err := remote.Open("redis://"+server.Addr, nil)
		if err != nil {
			t.Fatal(err)
		}
		g, err := tiered.NewGroup(store, &tiered.Options{
			Budget: time.Second, Timeout: time.Second, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = g.Close(context.Background())
			_ = store.Close()
		})
		l, err := atonce.New(g, atonce.Policy{Name: name, Places: places})
		if err != nil {
			t.Fatal(err)
		}
		return func(key string) (func(), bool) {
			p, err := l.Acquire(context.Background(), key)
			return p.Release, err == nil
		}
	}
	zset := func(t *testing.T, name string) semaphore {
		c := server.Client()
		t.Cleanup(func() { _ = c.Close() })
		process := rand.Uint64()
		var holders atomic.Int64
		return func(key string) (func(), bool) {
			holder, ctx := fmt.Sprint(process, holders.Add(1)), context.Background()
			n, err := zsetAcquire.Run(ctx, c, []string{name + key}, places, holder).Int()
			if err != nil {
				t.Error(err)
			}
			return func() { c.ZRem(ctx, name+key, holder) }, n == 1
		}
	}
	zipf := func(r *rand.Rand) func() string {
		z := rand.NewZipf(r, 1.1, 1, 1999)
		return func() string { return fmt.Sprint(z.Uint64()) }
	}
	hot := func(*rand.Rand) func() string { return func() string { return "hot" } }
	watch := server.Client()
	t.Cleanup(func() { _ = watch.Close() })
	for _, load := range []struct {
		name string
		keys func(*rand.Rand) func() string
		// the most, ÷ sorted set
		calls, p50 float64
	}{{"hot key", hot, 0.6, 1}, {"Zipf 1.1 over 2000 keys", zipf, 0.8, 3}} {
		for _, processes := range []int{1, 3, 12} {
			const us, them = 0, 1
			var fleets [2][]semaphore
			for i, made := range []func(*testing.T, string) semaphore{us: ours, them: zset} {
				for range processes {
					fleets[i] = append(fleets[i], made(t, fmt.Sprintf("s%d-%d-%d", len(load.name), processes, i)))
				}
			}
			var calls, requests, admitted [2]float64
			var waits [2][]time.Duration
			for range 4 { // in turns, so that what the machine does besides meets both
				for i, all := range fleets {
					before := executed(t, watch)
					n, ok, waited := requestsOn(all, load.keys, d)
					calls[i] += float64(executed(t, watch) - before)
					requests[i], admitted[i], waits[i] = requests[i]+float64(n), admitted[i]+float64(ok), append(waits[i], waited...)
				}
			}
			quantile := func(i int, q float64) time.Duration {
				slices.Sort(waits[i])
				return waits[i][int(float64(len(waits[i]))*q)]
			}
			perRequest := func(i int) float64 { return calls[i] / requests[i] }
			refused := func(i int) float64 { return 1 - admitted[i]/requests[i] }
			if n := perRequest(them); n < 1 {
				t.Errorf("a sorted set takes %v calls per request: this was not the work that was to be measured", n)
			}
			name := fmt.Sprintf("at once, %s, %d processes: ", load.name, processes)
			some(t, name+"Redis calls per request ÷ sorted set", perRequest(us)/perRequest(them), load.calls)
			some(t, name+"p50 of the answer to a request ÷ sorted set", float64(quantile(us, .5))/float64(quantile(them, .5)), load.p50)
			tell(t, name+"p99 of the answer to a request ÷ sorted set", float64(quantile(us, .99))/float64(quantile(them, .99)))
			atMost(t, name+"part of requests refused, less that of the sorted set", refused(us)-refused(them), 0.05)
			for i, who := range []string{"atonce", "sorted set"} {
				t.Logf("%s%s: %.2f calls per request, p50 %v, p99 %v, %.1f %% refused", name, who, perRequest(i),
					quantile(i, .5).Round(time.Microsecond), quantile(i, .99).Round(10*time.Microsecond), 100*refused(i))
			}
		}
	}
}

// requestsOn lets each process serve requests for a time. It returns how many there were and were
// admitted, and how long each waited for its answer.
func requestsOn(all []semaphore, keys func(*rand.Rand) func() string, d time.Duration) (requests, admitted int, waits []time.Duration) {
	var mu sync.Mutex
	var tasks sync.WaitGroup
	for i, acquire := range all {
		tasks.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			next := keys(r)
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			var running sync.WaitGroup
			for begun := time.Now(); time.Since(begun) < d; <-tick.C {
				key := next()
				running.Go(func() {
					asked := time.Now()
					release, ok := acquire(key)
					took := time.Since(asked)
					if ok {
						time.Sleep(5 * time.Millisecond)
						release()
					}
					mu.Lock()
					defer mu.Unlock()
					if requests++; ok {
						admitted++
					}
					waits = append(waits, took)
				})
			}
			running.Wait()
		})
	}
	tasks.Wait()
	return requests, admitted, waits
}

// executed returns how many commands clients have sent that take or give back places.
func executed(t *testing.T, c *redis.Client) (n int) {
	t.Helper()
	text, err := c.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		for _, name := range []string{"cmdstat_evalsha:calls=", "cmdstat_zrem:calls="} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				one := 0
				_, _ = fmt.Sscanf(rest, "%d", &one)
				n += one
			}
		}
	}
	return n
}
