package atonce_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// TestManyRequests plays random requests of some processes, with cuts, and judges by what runs:
// never more than the places in processes that renew in time.
func TestManyRequests(t *testing.T) {
	seeds := 20
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		bubble(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(seed), 1))
			store := remote.NewMemory()
			const most = 4
			policy := atonce.Policy{Name: "p", Places: most, Life: 2 * time.Second, FailMode: tiered.FailClosed}
			var mu sync.Mutex
			running, peak, served := map[string]int{}, 0, 0
			var tasks sync.WaitGroup
			for range 3 {
				a := start(t, store, policy, nil)
				for range 4 {
					r := rand.New(rand.NewPCG(random.Uint64(), 2))
					tasks.Go(func() {
						for range 150 {
							key, n := fmt.Sprint(r.IntN(2)), 1+r.IntN(2)
							until, cancel := context.WithTimeout(ctx(), time.Duration(r.IntN(500))*time.Millisecond)
							p, err := a.For(key).N(n).Wait(until)
							cancel()
							if err != nil {
								time.Sleep(20 * time.Millisecond)
								continue
							}
							mu.Lock()
							served++
							running[key] += n
							peak = max(peak, running[key])
							mu.Unlock()
							time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond)
							mu.Lock()
							running[key] -= n
							mu.Unlock()
							p.Release()
						}
					})
				}
				random := rand.New(rand.NewPCG(random.Uint64(), 3))
				tasks.Go(func() { // cuts that are shorter than the life
					for range 10 {
						time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
						a.link.cut.Store(true)
						time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
						a.link.cut.Store(false)
					}
				})
			}
			tasks.Wait()
			if peak > most {
				t.Errorf("seed %d: %d ran, of %d places", seed, peak, most)
			}
			if served < 100 {
				t.Errorf("seed %d: %d were served", seed, served)
			}
			time.Sleep(5 * time.Second)
			p := start(t, store, policy, nil)
			for key := range running {
				if all, err := p.For(key).N(most).Acquire(ctx()); err != nil {
					t.Errorf("seed %d: places of %s are missing: %v", seed, key, err)
				} else {
					all.Release()
				}
			}
		})
	}
}

// TestBesideRateLimits plays requests that need a place and a token, in some processes with
// outages. Neither limit is exceeded, and no token is spent by a request without a place.
func TestBesideRateLimits(t *testing.T) {
	for seed := range 10 {
		bubble(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(seed), 5))
			store := remote.NewMemory()
			const most, burst, perSecond = 3, 40, 20
			var mu sync.Mutex
			running, peak, admitted, full := 0, 0, 0, 0
			var tasks sync.WaitGroup
			begun := time.Now()
			for range 3 {
				a := start(t, store, atonce.Policy{Name: "p", Places: most, FailMode: tiered.FailClosed}, nil)
				rate, err := a.group.NewLimiter(tiered.Policy{
					Name: "p", Limit: tiered.PerSecond(perSecond).WithBurst(burst), FailMode: tiered.FailClosed,
				})
				if err != nil {
					t.Fatal(err)
				}
				for range 3 {
					r := rand.New(rand.NewPCG(random.Uint64(), 6))
					tasks.Go(func() {
						for range 200 {
							time.Sleep(time.Duration(r.IntN(40)) * time.Millisecond)
							place, err := a.Acquire(ctx(), "k")
							if err != nil {
								mu.Lock()
								full++
								mu.Unlock()
								continue
							}
							if rate.Allow(ctx(), "k").Allowed {
								mu.Lock()
								running, admitted = running+1, admitted+1
								peak = max(peak, running)
								mu.Unlock()
								time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
								mu.Lock()
								running--
								mu.Unlock()
							}
							place.Release()
						}
					})
				}
			}
			tasks.Go(func() {
				for range 4 {
					time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
					store.Fail(errors.New("down"))
					time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
					store.Fail(nil)
				}
			})
			tasks.Wait()
			if peak > most || float64(admitted) > burst+perSecond*time.Since(begun).Seconds() {
				t.Errorf("seed %d: %d ran of %d, and %d were admitted in %v", seed, peak, most, admitted, time.Since(begun))
			}
			if peak < most || full == 0 || admitted < burst {
				t.Errorf("seed %d: %d ran, %d found no place, %d were admitted: it shows nothing", seed, peak, full, admitted)
			}
		})
	}
}
