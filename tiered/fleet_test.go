package tiered

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/ideal"
)

// offer is one request of a fleet: when, of which process, and what became of it.
type offer struct {
	at      time.Duration // when it was made
	done    time.Duration // when it was decided
	allowed bool
	reason  Reason
}

// fleetRun is a fleet under load on one key, in virtual time.
type fleetRun struct {
	processes   int
	limit       Limit
	demand      float64 // offered, as a part of the limit's rate
	hot         bool    // one process has all the demand, another one every 0.5 s
	noLease     bool
	length      time.Duration
	trip        time.Duration
	loseReplies float64 // part of the time, in stretches of 60 ms
	mode        FailMode
	known       int                                      // Options.Processes
	down        func(at time.Duration, process int) bool // who is cut off when
	lossy       float64                                  // part of the replies that are lost
	keys        int                                      // keys that share the demand; 0 for one
}

// run returns what was offered, by time, and the calls made.
func (f fleetRun) run(t *testing.T, seed uint64) (offers []offer, calls int64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(f.trip)
		policy := Policy{Name: "api", Limit: f.limit, FailMode: f.mode}
		if f.noLease {
			policy.Lease.Size = NoLease
		}
		rate := f.demand / f.limit.nanosPerToken() // per ns, all together
		start := time.Now()
		var mu sync.Mutex
		var all sync.WaitGroup
		limiters := make([]*Limiter, f.processes)
		wires := make([]*distant, f.processes)
		for i := range limiters {
			wire := store
			if f.down != nil || f.lossy > 0 {
				wire = &distant{Memory: store.Memory, trip: f.trip}
				if f.down != nil {
					wire.down = func() bool { return f.down(time.Since(start), i) }
				}
				lost := dice(seed, uint64(2000+i))
				wire.lossy = func() bool { return lost() < f.lossy }
			}
			wires[i] = wire
			// Jitter with a seed, and arrivals that fall on no common nanosecond: a run repeats exactly.
			limiters[i] = limiter(t, wire, policy, &Options{Processes: f.known, Random: dice(seed, uint64(3000+i))})
		}
		ctx, cancel := context.WithCancel(t.Context())
		if f.loseReplies > 0 {
			random := rand.New(rand.NewPCG(seed, 1000))
			all.Go(func() {
				for ctx.Err() == nil {
					store.loseReplies.Store(true)
					time.Sleep(60 * ms)
					store.loseReplies.Store(false)
					time.Sleep(time.Duration((0.5 + random.Float64()) * 60 / f.loseReplies * float64(ms)))
				}
			})
		}
		request := func(l *Limiter, key string) {
			at := time.Since(start)
			d := l.Allow(context.Background(), key)
			o := offer{at, time.Since(start), d.Allowed, d.Reason}
			mu.Lock()
			offers = append(offers, o)
			mu.Unlock()
		}
		var loads sync.WaitGroup
		for i, l := range limiters {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			each := rate / float64(f.processes)
			if f.hot {
				each = rate
			}
			loads.Go(func() {
				for {
					time.Sleep(time.Duration(random.ExpFloat64() / each))
					now := time.Since(start)
					if now > f.length {
						return
					}
					if f.hot && int(now/(500*ms))%f.processes != i {
						time.Sleep(500*ms - now%(500*ms))
						continue
					}
					key := "hot"
					if f.keys > 0 {
						key = strconv.Itoa(random.IntN(f.keys))
					}
					loads.Go(func() { request(l, key) }) // open loop: who waits holds nobody up
				}
			})
		}
		loads.Wait()
		cancel()
		all.Wait()
		calls = store.calls.Load()
		for _, w := range wires {
			if w != store {
				calls += w.calls.Load()
			}
		}
	})
	slices.SortFunc(offers, func(a, b offer) int { return int(a.at - b.at) })
	return offers, calls
}

// dice returns random numbers in [0, 1) that repeat with their seed.
func dice(seed, stream uint64) func() float64 {
	random := rand.New(rand.NewPCG(seed, stream))
	var mu sync.Mutex
	return func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return random.Float64()
	}
}

// judge compares a run with the ideal central bucket.
func (f fleetRun) judge(offers []offer) (utilisation float64, worst ideal.Excess) {
	bucket := ideal.NewBucket(f.limit.Tokens, f.limit.Per, f.limit.burst())
	var best, admitted int
	var admissions []ideal.Admission
	for _, o := range offers {
		if bucket.Take(int64(o.at), 1) {
			best++
		}
		if o.allowed {
			admitted++
			admissions = append(admissions, ideal.Admission{Before: int64(o.at), After: int64(o.done), Tokens: 1})
		}
	}
	return float64(admitted) / float64(best), ideal.Worst(admissions, f.limit.Tokens, f.limit.Per, f.limit.burst())
}

// microsecond is what a limit may be exceeded by because the store's clock has whole microseconds, and a grant may be
// 10⁻⁹ early.
func tolerance(l Limit) float64 { return 2*float64(time.Microsecond)/l.nanosPerToken() + 1e-6 }

func TestFleetUsesTheLimitAndKeepsTheBound(t *testing.T) {
	thousand := PerSecond(1000).WithBurst(200)
	for _, c := range []struct {
		name        string
		run         fleetRun
		utilisation float64 // at least
		calls       float64 // per admitted token, at most
	}{
		{"3 r", fleetRun{processes: 10, limit: thousand, demand: 3}, 0.985, 0.3},
		{"1.5 r", fleetRun{processes: 10, limit: thousand, demand: 1.5}, 0.985, 0.3},
		{"0.95 r", fleetRun{processes: 10, limit: thousand, demand: 0.95}, 0.99, 0.3},
		{"1.2 r, the hot process changes", fleetRun{processes: 10, limit: thousand, demand: 1.2, hot: true}, 0.98, 0.1},
		{"0.8 r, the hot process changes", fleetRun{processes: 10, limit: thousand, demand: 0.8, hot: true}, 0.999, 0.15},
		{"10/s over 8 processes, 3 r", fleetRun{processes: 8, limit: PerSecond(10), demand: 3, length: 60 * time.Second}, 0.95, 4},
		{"no leases, 3 r", fleetRun{processes: 10, limit: thousand, demand: 3, noLease: true}, 0.98, 4},
		{"3 r, 10 % of replies lost", fleetRun{processes: 10, limit: thousand, demand: 3, loseReplies: 0.1}, 0.8, 0.4},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := c.run
			f.mode = FailClosed
			f.trip = 600 * time.Microsecond
			if f.length == 0 {
				f.length = 12 * time.Second
			}
			for seed := range uint64(2) {
				offers, calls := f.run(t, seed)
				utilisation, worst := f.judge(offers)
				admitted := 0
				for _, o := range offers {
					if o.allowed {
						admitted++
					}
				}
				t.Logf("seed %d: %d offered, %d admitted, utilisation %.4f, %.3f calls per token, worst interval: %v",
					seed, len(offers), admitted, utilisation, float64(calls)/float64(admitted), worst)
				if worst.Over > tolerance(f.limit) {
					t.Errorf("seed %d: over-admission: %v", seed, worst)
				}
				if utilisation < c.utilisation {
					t.Errorf("seed %d: utilisation %.4f, want %.3f", seed, utilisation, c.utilisation)
				}
				if perToken := float64(calls) / float64(admitted); perToken > c.calls {
					t.Errorf("seed %d: %.3f calls per token, want %.2f", seed, perToken, c.calls)
				}
			}
		})
	}
}

// worst judges the admissions of a part of a run.
func worst(offers []offer, l Limit, from, to time.Duration) ideal.Excess {
	var admissions []ideal.Admission
	for _, o := range offers {
		if o.allowed && o.at >= from && o.at < to {
			admissions = append(admissions, ideal.Admission{Before: int64(o.at), After: int64(o.done), Tokens: 1})
		}
	}
	return ideal.Worst(admissions, l.Tokens, l.Per, l.burst())
}

// denied counts the refusals of a part of a run.
func denied(offers []offer, from, to time.Duration) (n, of int) {
	for _, o := range offers {
		if o.at >= from && o.at < to {
			of++
			if !o.allowed {
				n++
			}
		}
	}
	return n, of
}
