package atonce_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// TestABusyKeyCostsNoCallPerRequest also keeps the price of renewing: one round trip per
// second for a thousand keys.
func TestABusyKeyCostsNoCallPerRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := start(t, remote.NewMemory(), atonce.Policy{Name: "p", Places: 5}, nil)
		for range 10_000 {
			p := a.acquire(t, "k")
			time.Sleep(time.Millisecond)
			p.Release()
		}
		if n := a.link.claims.Load(); n > 255 {
			t.Errorf("10 000 requests in 10 s took %d calls", n)
		}
		time.Sleep(time.Second)
		var held []*atonce.Place
		for i := range 1000 {
			held = append(held, a.acquire(t, fmt.Sprint(i)))
		}
		time.Sleep(time.Second)
		before := a.link.claims.Load()
		time.Sleep(time.Minute)
		if n := a.link.claims.Load() - before; n > 61 {
			t.Errorf("1000 keys took %d calls in a minute", n)
		}
		for _, p := range held {
			p.Release()
		}
	})
}

// TestSparePlacesAreNotMissedElsewhere counts requests that are refused, and calls, beside a
// semaphore that is asked and told for each request. Each process serves 200 requests per second
// that take 5 ms.
func TestSparePlacesAreNotMissedElsewhere(t *testing.T) {
	hot := func(*rand.Rand) func() string { return func() string { return "hot" } }
	zipf := func(r *rand.Rand) func() string {
		z := rand.NewZipf(r, 1.1, 1, 1999)
		return func() string { return fmt.Sprint(z.Uint64()) }
	}
	for _, c := range []struct {
		name      string
		processes int
		keys      func(*rand.Rand) func() string
		most      float64 // percent that is refused more than by the semaphore
	}{{"hot", 3, hot, 2}, {"hot", 12, hot, 0}, {"Zipf", 1, zipf, 0}, {"Zipf", 3, zipf, 0.2}, {"Zipf", 12, zipf, 3}} {
		bubble(t, func(t *testing.T) {
			store := remote.NewMemory()
			var ours, plain []func(string) (func(), bool)
			var links []*link
			var mu sync.Mutex
			running := map[string]int{}
			for range c.processes {
				a := start(t, store, atonce.Policy{Name: "p", Places: 5}, nil)
				a.link.trip = trip
				links = append(links, a.link)
				ours = append(ours, func(key string) (func(), bool) {
					p, err := a.Acquire(ctx(), key)
					return p.Release, err == nil
				})
				change := func(key string, by int) bool {
					time.Sleep(trip / 2)
					mu.Lock()
					defer mu.Unlock()
					if running[key]+by > 5 {
						return false
					}
					running[key] += by
					return true
				}
				plain = append(plain, func(key string) (func(), bool) {
					return func() { change(key, -1) }, change(key, 1)
				})
			}
			_, before := serve(plain, c.keys)
			requests, refused := serve(ours, c.keys)
			calls := 0.0
			for _, l := range links {
				calls += float64(l.claims.Load())
			}
			calls, most := calls/requests, 2-before/requests
			t.Logf("%s, %d processes: %.1f %% refused, and %.1f %% by a semaphore; %.2f calls per request, and %.2f",
				c.name, c.processes, 100*refused/requests, 100*before/requests, calls, most)
			if 100*(refused-before)/requests > c.most || calls > most {
				t.Error("too many")
			}
		})
	}
}

const trip = 200 * time.Microsecond

// serve lets each process serve requests for 4 s.
func serve(all []func(string) (func(), bool), keys func(*rand.Rand) func() string) (requests, refused float64) {
	var mu sync.Mutex
	var tasks sync.WaitGroup
	for i, acquire := range all {
		tasks.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			next := keys(r)
			time.Sleep(time.Duration(r.Int64N(int64(5 * time.Millisecond))))
			for range 800 {
				key := next()
				tasks.Go(func() {
					release, ok := acquire(key)
					if ok {
						time.Sleep(5 * time.Millisecond)
						release()
					}
					mu.Lock()
					defer mu.Unlock()
					if requests++; !ok {
						refused++
					}
				})
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	tasks.Wait()
	return requests, refused
}
