package tiered_test

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A fleet reserves, cancels and settles at random. At any time, admitted tokens less returned ones keep the bound,
// and no pot holds more than its record in Redis covers.
func TestGivingBackKeepsTheBound(t *testing.T) {
	notUnderRace(t)
	for _, c := range []struct {
		name  string
		lease tiered.Lease
		loss  float64 // part of the replies that are lost
		dear  bool    // some turn out to cost more: that is charged when it is known, and may be over by one burst
		least float64 // of what an ideal bucket would admit
	}{
		{"leases", tiered.Lease{}, 0, false, 0.95},
		{"small leases", tiered.Lease{Size: 5}, 0, false, 0.95},
		{"direct takes", tiered.Lease{Size: tiered.NoLease}, 0, false, 0.95},
		{"replies are lost", tiered.Lease{}, 0.05, false, 0.85},
		{"dearer than thought", tiered.Lease{}, 0, true, 0.95},
	} {
		for seed := range seeds(3) {
			synctest.Test(t, func(t *testing.T) {
				limit := tiered.PerSecond(500).WithBurst(200)
				store := newTape()
				lossy := rand.New(rand.NewPCG(seed, 99))
				var lossMu sync.Mutex
				store.lossy = func() bool {
					lossMu.Lock()
					defer lossMu.Unlock()
					return lossy.Float64() < c.loss
				}
				start := time.Now()
				var mu sync.Mutex
				var net int64
				over := math.Inf(-1)
				count := func(n int64) {
					mu.Lock()
					defer mu.Unlock()
					net += n
					over = max(over, float64(net)-200-500*time.Since(start).Seconds())
				}
				var fleet []*tiered.Limiter
				var all sync.WaitGroup
				for i := range 4 {
					l := limiter(t, store, tiered.Policy{
						Name: "api", Limit: limit, FailMode: tiered.FailClosed,
						Lease: c.lease,
					}, nil)
					fleet = append(fleet, l)
					random := rand.New(rand.NewPCG(seed, uint64(i)))
					all.Go(func() {
						for time.Since(start) < 20*time.Second {
							time.Sleep(time.Duration(random.ExpFloat64() * float64(6*ms)))
							n, wait, how := 1+random.Int64N(8), time.Duration(random.ExpFloat64()*float64(40*ms)),
								random.IntN(4)
							actual := random.Int64N(n)
							if c.dear {
								actual *= 5
							}
							all.Go(func() {
								r := l.ReserveN(context.Background(), "k", n)
								if !r.Allowed {
									return
								}
								count(n)
								if how > 1 {
									time.Sleep(wait)
								}
								switch how {
								case 0, 2:
									count(-n)
									r.Cancel()
								case 3:
									count(actual - n)
									r.Settle(actual)
								}
							})
						}
					})
				}
				for time.Since(start) < 20*time.Second {
					time.Sleep(7 * ms)
					covered(t, store, fleet)
				}
				all.Wait()
				ideal := 200 + 500*time.Since(start).Seconds()
				t.Logf("%s, seed %d: %d admitted net of what was given back, an ideal bucket %.0f at most; at worst %.1f over",
					c.name, seed, net, ideal, over)
				allowed := tolerance(limit)
				if c.dear {
					allowed += 200
				}
				if over > allowed {
					t.Errorf("over by %.1f", over)
				}
				if float64(net) < c.least*ideal {
					t.Errorf("%d admitted, want %.0f at least", net, c.least*ideal)
				}
				for _, l := range fleet {
					books(t, l.Group())
				}
			})
			if c.loss == 0 && testing.Short() {
				break
			}
		}
	}
}

// covered checks that what the processes hold was told to Redis and has not ended there.
func covered(t *testing.T, store *tape, fleet []*tiered.Limiter) {
	t.Helper()
	store.mu.Lock()
	defer store.mu.Unlock()
	records := map[string]taped{} // the last executed call of each lease
	for _, c := range store.calls {
		if c.Lease != "" && (c.reply.Code == lua.Granted || c.reply.Code == lua.Denied) &&
			c.Seq > records[c.Lease].Seq {
			records[c.Lease] = c
		}
	}
	for i, l := range fleet {
		b, ok := tiered.Engine(l.Group()).Cache.Find(tiered.Core(l).ID("k"))
		if !ok {
			continue
		}
		held, _ := b.Peek(tiered.Engine(l.Group()).Now())
		r := records[*tiered.Engine(l.Group()).Lease.Load()]
		if known := r.Hold + r.reply.Grant; held > known {
			t.Errorf("process %d holds %d, and Redis knows of %d: %+v", i, held, known, r)
		}
	}
}
