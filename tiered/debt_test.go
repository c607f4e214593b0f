package tiered_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// forgiving is a store that forgives what a process' own share has refilled, whether the bucket threw anything away or
// not: it charges min(d, b − x), the part of a debt that is owed in any case. That looks fair, and is what one would do
// without counting the overflow.
type forgiving struct{ *distant }

func (s forgiving) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	forgiven := slices.Clone(calls)
	for i := range forgiven {
		forgiven[i].Debt = forgiven[i].Owed
	}
	s.distant.Run(ctx, timeout, forgiven, results)
}

// rehearse lets a fleet of ten live through outages, with a store that charges debts or one that forgives them.
func rehearse(t *testing.T, seed uint64, demand float64, length time.Duration, down func(time.Duration, int) bool,
	forgive bool,
) (offers []offer) {
	synctest.Test(t, func(t *testing.T) {
		const processes = 10
		start := time.Now()
		wire := newDistant(600 * time.Microsecond)
		wire.down = func() bool { return down(time.Since(start), 0) }
		var store remote.Store = wire
		if forgive {
			store = forgiving{wire}
		}
		var loads sync.WaitGroup
		var mu sync.Mutex
		for i := range processes {
			l := limiter(t, store, tiered.Policy{Name: "api", Limit: thousand}, &tiered.Options{Processes: processes})
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			each := demand / nanosPerTokenOf(thousand) / processes
			loads.Go(func() {
				for {
					time.Sleep(time.Duration(random.ExpFloat64() / each))
					if time.Since(start) > length {
						return
					}
					loads.Go(func() {
						at := time.Since(start)
						d := l.Allow(context.Background(), "hot")
						mu.Lock()
						defer mu.Unlock()
						offers = append(offers, offer{
							at: at, done: time.Since(start), cost: 1, allowed: d.Allowed,
							reason: d.Reason,
						})
					})
				}
			})
		}
		loads.Wait()
	})
	slices.SortFunc(offers, func(a, b offer) int { return int(a.at - b.at) })
	return offers
}

// The test compares two stores under the same load: one charges debts less the overflow, as the scripts do, and one
// charges only what no refill pays.
func TestWhatTheOverflowIsWorth(t *testing.T) {
	if testing.Short() {
		t.Skip("twelve runs of up to 65 s in virtual time")
	}
	outage, flap := during(10*second, 25*second), func(at time.Duration,
		_ int,
	) bool {
		return at > 5*second && at/second%2 == 1
	}
	const seeds = 3
	for _, c := range []struct {
		name     string
		demand   float64
		length   time.Duration
		down     func(time.Duration, int) bool
		from, to time.Duration // judged
		flapping bool
	}{
		{"15 s outage at 1.5 r", 1.5, 45 * second, outage, 10 * second, 35 * second, false},
		{"15 s outage at 3 r", 3, 45 * second, outage, 10 * second, 35 * second, false},
		{"flapping for 60 s at 1.5 r", 1.5, 65 * second, flap, 0, 65 * second, true},
		{"flapping for 60 s at 0.5 r", 0.5, 65 * second, flap, 0, 65 * second, false},
	} {
		charged, forgiven := "", ""
		most, least := -1e9, 1e9
		for seed := range uint64(seeds) {
			a, b := rehearse(t, seed, c.demand, c.length, c.down, false),
				rehearse(t, seed, c.demand, c.length, c.down, true)
			over, without := worst(a, thousand, c.from, c.to).Over, worst(b, thousand, c.from, c.to).Over
			most, least = max(most, over), min(least, without)
			charged += fmt.Sprintf(" %5.0f", over)
			forgiven += fmt.Sprintf(" %5.0f", without)
			if n, of := denied(a, 0, c.length); c.demand < 1 && n > 0 {
				t.Errorf("%s: %d of %d refused", c.name, n, of)
			}
		}
		t.Logf("%-28s over by%s tokens with the overflow, by%s without", c.name, charged, forgiven)
		if !c.flapping {
			continue
		}
		if most >= 2*200 {
			t.Errorf("%s: over by %.0f, want less than 2 bursts", c.name, most)
		}
		if least < 3*max(most, 0) {
			t.Errorf("%s: over by %.0f at least without the overflow, by %.0f at most with it: it is not worth its bytes",
				c.name, least, most)
		}
	}
}

// A user stays within several limits during ten minutes without Redis. Afterwards nothing is refused: all buckets
// of the user were full meanwhile, and the refill that they lost pays for what was admitted.
func TestALongOutageIsForgivenWhereAllBucketsWereFull(t *testing.T) {
	const processes, down, up, end = 4, time.Minute, 11 * time.Minute, 13 * time.Minute
	for _, demand := range []float64{0.3, 0.8} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			wire := newDistant(ms)
			wire.down = func() bool { at := time.Since(start); return at >= down && at < up }
			each := time.Duration(float64(time.Minute) / 100 / demand * processes)
			alone, refused := make([]int, processes), make([]int, processes)
			var loads sync.WaitGroup
			for i := range processes {
				l := limiter(t, wire, tiered.Policy{
					Name: "api", Limit: tiered.PerMinute(100),
					Also: []tiered.Limit{tiered.PerSecond(10)},
				},
					&tiered.Options{Processes: processes})
				loads.Go(func() {
					time.Sleep(each / processes * time.Duration(i))
					for ; time.Since(start) < end; time.Sleep(each) {
						switch d := l.Allow(context.Background(), "user"); {
						case !d.Allowed:
							refused[i]++
						case d.Reason == tiered.Fallback:
							alone[i]++
						}
					}
				})
			}
			loads.Wait()
			if n := slices.Min(alone); n < 10 {
				t.Fatalf("at %v of the limit a process decided %d times alone: this tests nothing", demand, n)
			}
			if n := slices.Max(refused); n > 0 {
				t.Errorf("at %v of the limit %v were refused", demand, refused)
			}
		})
	}
}
