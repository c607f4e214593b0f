package atonce_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// TestAllProcessesAreServed: whatever the requests of those who wait need, the places are used, no
// process is left out, and nobody asks without a pause. An even part of the places may be less than
// one request needs, or no place at all.
func TestAllProcessesAreServed(t *testing.T) {
	for _, c := range []struct{ processes, places, n int }{{2, 1, 1}, {5, 2, 1}, {2, 5, 3}, {3, 5, 2}, {3, 10, 7}, {2, 4, 4}} {
		bubble(t, func(t *testing.T) {
			store := remote.NewMemory()
			const during, run = 20 * time.Second, 100 * time.Millisecond
			until, cancel := context.WithTimeout(ctx(), during)
			defer cancel()
			served, calls := make([]int, c.processes), int64(0)
			var mu sync.Mutex
			var tasks sync.WaitGroup
			var all []*process
			for i := range c.processes {
				p := start(t, store, atonce.Policy{Name: "p", Places: c.places}, nil)
				p.link.trip = time.Millisecond
				all = append(all, p)
				for range 2 {
					tasks.Go(func() {
						for {
							place, err := p.For("k").N(c.n).Wait(until)
							if err != nil {
								return
							}
							mu.Lock()
							served[i]++
							mu.Unlock()
							time.Sleep(run)
							place.Release()
						}
					})
				}
			}
			tasks.Wait()
			for _, p := range all {
				calls += p.link.claims.Load()
			}
			// Half of what fits: a place that is given back serves another process within 100 ms.
			least := c.places / c.n * int(during/run) / c.processes / 2
			for _, n := range served {
				if n < least*3/4 {
					t.Errorf("%+v: %v were served, want %d of each", c, served, least)
					break
				}
			}
			if most := int64(c.processes) * 60 * int64(during/time.Second); calls > most {
				t.Errorf("%+v: %d calls, want at most %d", c, calls, most)
			}
		})
	}
}

// waiting lets a request for n places of a key wait, and returns what becomes of it within 10 s.
func waiting(t *testing.T, u atonce.Use) (end func() (*atonce.Place, error)) {
	t.Helper()
	until, cancel := context.WithTimeout(ctx(), 10*time.Second)
	type result struct {
		*atonce.Place
		error
	}
	done := make(chan result)
	go func() {
		p, err := u.Wait(until)
		cancel()
		done <- result{p, err}
	}()
	time.Sleep(time.Second)
	return func() (*atonce.Place, error) { r := <-done; return r.Place, r.error }
}

// TestSetPolicyWhileWaiting: who waits goes by the new number of places. One that needs more than
// there are now is told, and does not stand before others.
func TestSetPolicyWhileWaiting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		policy := atonce.Policy{Name: "p", Places: 1}
		a := start(t, remote.NewMemory(), policy, nil)
		held := a.acquire(t, "k")
		one := waiting(t, a.For("k"))
		set := func(places int) {
			if policy.Places = places; a.SetPolicy(policy) != nil {
				t.Fatal("the policy is not valid")
			}
		}
		set(5)
		p, err := one()
		if err != nil {
			t.Errorf("one of five places: %v", err)
		}
		p.Release()
		five, one := waiting(t, a.For("k").N(5)), waiting(t, a.For("k"))
		set(2)
		if _, err := five(); !errors.Is(err, atonce.ErrInvalid) {
			t.Errorf("five of two places: %v, want ErrInvalid", err)
		}
		if p, err = one(); err != nil {
			t.Errorf("the one behind it: %v", err)
		}
		p.Release()
		held.Release()
	})
}

// TestPlansWait: each request that waits goes by the places of its own plan.
func TestPlansWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := start(t, remote.NewMemory(), atonce.Policy{Name: "p", Places: 2, Plans: map[string]int{"pro": 5}}, nil)
		all, err := a.For("k").WithPlan("pro").N(5).Acquire(ctx())
		if err != nil {
			t.Fatal(err)
		}
		pro := waiting(t, a.For("k").WithPlan("pro").N(3))
		free := waiting(t, a.For("k"))
		all.Release()
		p, err := pro()
		if err != nil {
			t.Errorf("three of five places: %v", err)
		}
		time.Sleep(time.Second)
		a.refused(t, "k", atonce.ErrFull) // three run
		p.Release()
		if p, err = free(); err != nil {
			t.Errorf("one of two places: %v", err)
		}
		p.Release()
	})
}

// TestLongerLife: a place that runs while Life grows stays its process' own.
func TestLongerLife(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		policy := atonce.Policy{Name: "p", Places: 1, Life: time.Second}
		a, b := start(t, store, policy, nil), start(t, store, policy, nil)
		held := a.acquire(t, "k")
		policy.Life = 30 * time.Second
		if err := a.SetPolicy(policy); err != nil {
			t.Fatal(err)
		}
		defer a.link.frozen.Store(false)
		for i := range 1000 {
			a.link.frozen.Store(i%7 < 3) // what a call takes differs
			b.refused(t, "k", atonce.ErrFull)
			time.Sleep(10 * time.Millisecond)
		}
		held.Release()
	})
}
