package tiered_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// openTime is how long a breaker stays open at most, once Redis is back: the longest wait for its next probe.
const openTime = second

// Two hundred processes that lose Redis together do not come back together: what they send to find out whether it
// is there, in any 100 ms of the outage and after it, stays far below one call each. It is about when they send, so
// it runs in virtual time, where a machine that is busy cannot spread them.
func TestTwoHundredProcessesProbeApart(t *testing.T) {
	if underRace {
		t.Skip("takes a quarter of a minute, and smaller fleets do the same")
	}
	const processes, most = 200, 80
	const down, up, end, slot = 5 * second, 20 * second, 25 * second, 100 * ms
	synctest.Test(t, func(t *testing.T) {
		shared := newDistant(ms)
		start := time.Now()
		var mu sync.Mutex
		probes, closed := make([]int, end/slot+1), make([]int, end/slot+1)
		count := func(in []int) {
			mu.Lock()
			defer mu.Unlock()
			in[min(int(time.Since(start)/slot), len(in)-1)]++
		}
		limiters := make([]*tiered.Limiter, processes)
		var loads sync.WaitGroup
		for i := range limiters {
			wire := &distant{Memory: shared.Memory, trip: ms}
			wire.down = func() bool { at := time.Since(start); return at >= down && at < up }
			random := dice(1, uint64(i))
			limiters[i] = limiter(t, wire, tiered.Policy{Limit: tiered.PerSecond(20_000)}, &tiered.Options{
				Processes: processes, Random: random, Trace: &tiered.Trace{State: func(e tiered.Event) {
					switch e.What {
					case "probing":
						count(probes)
					case "closed":
						count(closed)
					}
				}},
			})
			loads.Go(func() { // 40 decisions per s each, of one hot key and of rare ones
				for n := 0; time.Since(start) < end; n++ {
					key := "hot"
					if n%4 == 0 {
						key = fmt.Sprint(i, n)
					}
					limiters[i].Allow(context.Background(), key)
					time.Sleep(time.Duration((0.5 + random()) * float64(25*ms)))
				}
			})
		}
		loads.Wait()
		worstOf := func(n []int, from, to time.Duration) int { return slices.Max(n[from/slot : to/slot]) }
		back := time.Duration(0)
		total := 0
		for i, n := range closed {
			if total += n; total == processes && back == 0 {
				back = time.Duration(i+1)*slot - up
			}
		}
		t.Logf("%d processes: at most %d probes in 100 ms of the outage, %d after it; %d closed their breakers, all within %v",
			processes, worstOf(probes, down, up), worstOf(probes, up, end), total, back)
		if n := worstOf(probes, down, end); n > most {
			t.Errorf("%d probes in 100 ms, want %d at most", n, most)
		}
		if total != processes || back > openTime+2*slot {
			t.Errorf("%d of %d are back after %v", total, processes, back)
		}
	})
}

// With any policy, Redis decides over every key again 20 s after an outage, and carries out a Reset. This holds for a
// key whose calls failed, and for one that was first used while the breaker was open.
func TestEveryPolicyRecovers(t *testing.T) {
	notUnderRace(t)
	i, every := 0, 1
	if testing.Short() || underRace {
		every = 23 // a prime, so that all values of each come up
	}
	for a := tiered.TokenBucket; a <= tiered.SlidingWindow; a++ {
		for _, limit := range []tiered.Limit{
			{Tokens: 10, Per: 100 * ms},
			{Tokens: 50, Per: 500 * ms},
			tiered.PerSecond(100),
			{Tokens: 200, Per: 2 * second},
			tiered.PerMinute(3000),
			tiered.PerDay(1000),
			{Tokens: 3000, Per: time.Minute, Burst: 5},
			{Tokens: 1, Per: second, Burst: 5000},
		} {
			for _, lease := range []tiered.Lease{{}, {Size: tiered.NoLease}, {Period: time.Minute}, {Period: 5 * ms}} {
				for _, timeout := range []time.Duration{50 * ms, 600 * ms, 5 * second} {
					for _, mode := range failModes {
						p := tiered.Policy{Name: "api", Limit: limit, Algorithm: a, FailMode: mode, Lease: lease}
						if p.Validate() != nil {
							continue
						}
						if i++; i%every == 0 {
							t.Run(fmt.Sprint(a, " ", limit, lease, timeout, " ", mode), func(t *testing.T) {
								t.Parallel() // in virtual time
								recovers(t, p, timeout)
							})
						}
					}
				}
			}
		}
	}
}

// recovers has two keys of a policy go through an outage.
func recovers(t *testing.T, p tiered.Policy, timeout time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, p, &tiered.Options{Timeout: timeout})
		load := func(d, step time.Duration, keys ...string) (tiers map[tiered.Tier]int) {
			tiers = map[tiered.Tier]int{}
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(step) {
				for _, key := range keys {
					r := l.ReserveN(context.Background(), key, 1)
					if tiers[r.Tier]++; tiers[r.Tier]%3 == 0 {
						r.Cancel()
					}
				}
			}
			return tiers
		}
		load(2*second, 3*ms, "k")
		store.Memory.Fail(io.EOF)
		load(2*second, 3*ms, "k")
		load(100*ms, 3*ms, "k", "l")
		store.Memory.Fail(nil)
		load(20*second, 20*ms, "k", "l")
		tiers := load(2*second, 3*ms, "k", "l")
		if s := l.Stats(); tiers[tiered.Failover] > 0 || s.Faults.Rejected > 0 {
			t.Errorf("decided by %v; %d calls refused for their key", tiers, s.Faults.Rejected)
		}
		for _, key := range []string{"k", "l"} {
			if err := l.Reset(t.Context(), key); err != nil {
				t.Errorf("Reset: %v", err)
			}
		}
	})
}
