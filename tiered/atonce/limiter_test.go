package atonce_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

func TestFiveAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		a := start(t, store, atonce.Policy{Name: "p", Places: 5}, nil)
		b := start(t, store, atonce.Policy{Name: "p", Places: 5}, nil)
		var held []*atonce.Place
		for range 3 {
			held = append(held, a.acquire(t, "k"), b.acquire(t, "other"))
		}
		held = append(held, b.acquire(t, "k"), b.acquire(t, "k"))
		a.refused(t, "k", atonce.ErrFull)
		b.refused(t, "k", atonce.ErrFull)
		if u, err := a.Peek(ctx(), "k"); err != nil || u != (atonce.Usage{Running: 5, Places: 5}) {
			t.Errorf("Peek: %+v, %v", u, err)
		}
		time.Sleep(time.Hour) // processes renew
		a.refused(t, "k", atonce.ErrFull)
		held[0].Release()
		time.Sleep(100 * time.Millisecond)
		held[0] = b.acquire(t, "k")
		a.refused(t, "k", atonce.ErrFull)
		for _, p := range held {
			p.Release()
			p.Release() // counts once
		}
		time.Sleep(100 * time.Millisecond)
		if u, err := b.Peek(ctx(), "k"); err != nil || u.Running != 0 {
			t.Errorf("Peek: %+v, %v", u, err)
		}
		time.Sleep(time.Minute)
		if s := a.Stats(); s.Running != 0 || s.Keys != 0 {
			t.Errorf("Stats: %+v", s)
		}
	})
}

// TestAGivenBackPlaceServesAnother: within 100 ms, whether the other asks or waits, and although
// the process that had the place is idle or goes on asking.
func TestAGivenBackPlaceServesAnother(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprint("busy ", busy), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := remote.NewMemory()
				a := start(t, store, atonce.Policy{Name: "p", Places: 2}, nil)
				b := start(t, store, atonce.Policy{Name: "p", Places: 2}, nil)
				var tasks sync.WaitGroup
				end := time.Now().Add(20 * time.Second)
				held := []*atonce.Place{a.acquire(t, "k"), a.acquire(t, "k")}
				if busy {
					for _, p := range held {
						tasks.Go(func() {
							for p.Release(); time.Now().Before(end); time.Sleep(time.Millisecond) {
								if p, err := a.Acquire(ctx(), "k"); err == nil {
									time.Sleep(3 * time.Millisecond)
									p.Release()
								}
							}
						})
					}
				}
				worst := time.Duration(0)
				for i := range 40 {
					if !busy {
						time.Sleep(time.Duration(i) * 7 * time.Millisecond)
						released := time.Now()
						held[0].Release()
						p, err := b.Wait(ctx(), "k")
						if err != nil {
							t.Fatal(err)
						}
						worst = max(worst, time.Since(released))
						p.Release()
						if held[0], err = a.Wait(ctx(), "k"); err != nil {
							t.Fatal(err)
						}
						continue
					}
					began := time.Now()
					p, err := b.Wait(ctx(), "k")
					if err != nil {
						t.Fatal(err)
					}
					worst = max(worst, time.Since(began))
					p.Release()
					time.Sleep(time.Duration(i) * 7 * time.Millisecond)
				}
				if worst > 100*time.Millisecond {
					t.Errorf("a waiter waited for %v beside free places", worst)
				}
				t.Log("the longest wait:", worst)
				for _, p := range held {
					p.Release()
				}
				tasks.Wait()
			})
		})
	}
}

func TestWaitIsFair(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := start(t, remote.NewMemory(), atonce.Policy{Name: "p", Places: 2}, nil)
		first, second := a.acquire(t, "k"), a.acquire(t, "k")
		var order []int
		var mu sync.Mutex
		var tasks sync.WaitGroup
		for i, n := range []int{1, 2, 1} {
			tasks.Go(func() {
				p, err := a.For("k").N(n).Wait(ctx())
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Second)
				p.Release()
			})
			synctest.Wait()
		}
		limited, cancel := context.WithTimeout(ctx(), time.Second)
		if _, err := a.Wait(limited, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait: %v", err)
		}
		cancel()
		if s := a.Stats(); s.Waiting != 3 {
			t.Errorf("%d wait", s.Waiting)
		}
		first.Release()
		second.Release()
		a.refused(t, "k", atonce.ErrFull) // one is free, and somebody waits for two
		tasks.Wait()
		if fmt.Sprint(order) != "[0 1 2]" {
			t.Errorf("who came first was not first: %v", order)
		}
	})
}

// TestABusyKeyCostsNoCallPerRequest also keeps the price of renewing: one command per second,
// however many keys.
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
		for i := range 60 {
			held = append(held, a.acquire(t, fmt.Sprint(i)))
		}
		time.Sleep(time.Second)
		before := a.link.claims.Load()
		time.Sleep(time.Minute)
		if n := a.link.claims.Load() - before; n > 61 {
			t.Errorf("60 keys took %d calls in a minute", n)
		}
		for _, p := range held {
			p.Release()
		}
	})
}

func TestCloseGivesSparePlacesBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		a := start(t, store, atonce.Policy{Name: "p", Places: 1}, nil)
		b := start(t, store, atonce.Policy{Name: "p", Places: 1}, nil)
		a.acquire(t, "k").Release()
		if err := a.group.Close(ctx()); err != nil {
			t.Error(err)
		}
		b.acquire(t, "k").Release()
	})
}

func TestAKilledProcessLosesItsPlacesAfterTheLife(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		a := start(t, store, atonce.Policy{Name: "p", Places: 1, Life: 5 * time.Second}, nil)
		b := start(t, store, atonce.Policy{Name: "p", Places: 1, Life: 5 * time.Second}, nil)
		place := a.acquire(t, "k")
		time.Sleep(10 * time.Second)
		a.link.cut.Store(true) // Redis hears no more of it
		began := time.Now()
		p, err := b.Wait(ctx(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 3*time.Second || took > 5*time.Second+100*time.Millisecond {
			t.Errorf("the place came after %v", took)
		}
		// It comes back: it was a process that stood still.
		request, cancel := place.Context(ctx())
		defer cancel()
		select {
		case <-place.Lost():
			t.Error("told before Redis said so")
		default:
		}
		a.link.cut.Store(false)
		time.Sleep(3 * time.Second)
		select {
		case <-place.Lost():
		default:
			t.Error("nobody was told that the place was lost")
		}
		if !errors.Is(context.Cause(request), atonce.ErrLost) {
			t.Errorf("the context ended with %v", context.Cause(request))
		}
		if s := a.Stats(); s.Lost != 1 {
			t.Errorf("Stats: %+v", s)
		}
		p.Release()
		time.Sleep(100 * time.Millisecond)
		b.refused(t, "k", atonce.ErrFull) // the lost request runs, and counts
		place.Release()
		time.Sleep(100 * time.Millisecond)
		b.acquire(t, "k").Release()
	})
}

func TestOutage(t *testing.T) {
	for mode, want := range map[tiered.FailMode]int{tiered.FailLocal: 3, tiered.FailOpen: 20, tiered.FailClosed: 0} {
		t.Run(mode.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := remote.NewMemory()
				policy := atonce.Policy{Name: "p", Places: 6, FailMode: mode}
				a := start(t, store, policy, &tiered.Options{Processes: 2})
				b := start(t, store, policy, &tiered.Options{Processes: 2})
				time.Sleep(4 * time.Second) // both are counted
				store.Fail(errors.New("down"))
				var held []*atonce.Place
				for range 20 {
					p, err := a.Acquire(ctx(), "k")
					if err == nil {
						held = append(held, p)
					} else if !errors.Is(err, atonce.ErrUnavailable) {
						t.Fatal(err)
					}
				}
				if len(held) != want {
					t.Errorf("%d run, want %d", len(held), want)
				}
				time.Sleep(time.Minute)
				store.Fail(nil)
				time.Sleep(3 * time.Second) // the breaker closes, and what runs is told
				if u, err := b.Peek(ctx(), "k"); err != nil || u.Running != len(held) {
					t.Errorf("Redis knows of %d, %v; %d run", u.Running, err, len(held))
				}
				for range max(0, 6-len(held)) {
					held = append(held, b.acquire(t, "k"))
				}
				b.refused(t, "k", atonce.ErrFull)
				a.refused(t, "k", atonce.ErrFull)
				for _, p := range held {
					p.Release()
				}
				time.Sleep(2 * time.Second)
				if u, err := b.Peek(ctx(), "k"); err != nil || u.Running != 0 {
					t.Errorf("Redis knows of %d, %v; none runs", u.Running, err)
				}
			})
		})
	}
}

// TestWaitInAnOutage: a place of the process serves its waiter, and FailClosed ends the waiting.
func TestWaitInAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		local := start(t, store, atonce.Policy{Name: "p", Places: 1}, nil)
		closed := start(t, store, atonce.Policy{Name: "q", Places: 1, FailMode: tiered.FailClosed}, nil)
		store.Fail(errors.New("down"))
		p, err := local.Wait(ctx(), "k")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, p.Release)
		began := time.Now()
		if p, err = local.Wait(ctx(), "k"); err != nil || time.Since(began) != time.Second {
			t.Errorf("Wait: %v after %v", err, time.Since(began))
		}
		p.Release()
		if _, err := closed.Wait(ctx(), "k"); !errors.Is(err, atonce.ErrUnavailable) {
			t.Errorf("Wait: %v", err)
		}
		store.Fail(nil)
		time.Sleep(2 * time.Second)
	})
}

// TestAHungRedis: nobody waits for longer than Budget.
func TestAHungRedis(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := start(t, remote.NewMemory(), atonce.Policy{Name: "p", Places: 1}, nil)
		a.link.frozen.Store(true)
		var held []*atonce.Place
		for i := range 20 {
			began := time.Now()
			p, err := a.Acquire(ctx(), fmt.Sprint(i))
			if took := time.Since(began); err != nil || took > 20*time.Millisecond {
				t.Errorf("Acquire: %v after %v", err, took)
			}
			held = append(held, p)
		}
		time.Sleep(time.Second)
		a.link.frozen.Store(false)
		time.Sleep(3 * time.Second)
		for i, p := range held {
			if u, err := a.Peek(ctx(), fmt.Sprint(i)); err != nil || u.Running != 1 {
				t.Fatalf("Peek: %+v, %v", u, err)
			}
			p.Release()
		}
		time.Sleep(time.Second)
	})
}

func TestFewerPlaces(t *testing.T) {
	bubble(t, func(t *testing.T) {
		policy := atonce.Policy{Name: "p", Places: 5}
		a := start(t, remote.NewMemory(), policy, nil)
		var held []*atonce.Place
		for range 5 {
			held = append(held, a.acquire(t, "k"))
		}
		policy.Places = 2
		if err := a.SetPolicy(policy); err != nil {
			t.Fatal(err)
		}
		for i, p := range held {
			select {
			case <-p.Lost():
				t.Error("what runs must end in peace")
			default:
			}
			a.refused(t, "k", atonce.ErrFull)
			p.Release()
			time.Sleep(200 * time.Millisecond)
			if i == 3 {
				a.acquire(t, "k").Release()
				time.Sleep(200 * time.Millisecond)
				break
			}
		}
		held[4].Release()
		policy.Name = "q"
		if a.SetPolicy(policy) == nil {
			t.Error("the name must not change")
		}
	})
}

// TestDifferentPlaces: the larger number may run, and each process is told once.
func TestDifferentPlaces(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		var log bytes.Buffer
		few := start(t, store, atonce.Policy{Name: "p", Places: 2}, &tiered.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		many := start(t, store, atonce.Policy{Name: "p", Places: 4}, nil)
		held := []*atonce.Place{few.acquire(t, "k"), few.acquire(t, "k"), many.acquire(t, "k")}
		for range 3 {
			time.Sleep(time.Second)
			few.refused(t, "k", atonce.ErrFull)
		}
		held = append(held, many.acquire(t, "k"))
		many.refused(t, "k", atonce.ErrFull)
		for _, p := range held {
			p.Release()
		}
		time.Sleep(2 * time.Second)
		if err := few.group.Close(ctx()); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "another number of places"); n != 1 {
			t.Errorf("told %d times:\n%s", n, &log)
		}
	})
}

func TestPlansAndKeys(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		plans := start(t, store, atonce.Policy{Name: "p", Places: 1, Plans: map[string]int{"pro": 3}}, nil)
		p, err := plans.For("k").WithPlan("pro").N(3).Acquire(ctx())
		if err != nil {
			t.Fatal(err)
		}
		p.Release()
		if _, err := plans.For("k").WithPlan("unknown").N(2).Acquire(ctx()); !errors.Is(err, atonce.ErrInvalid) {
			t.Errorf("2 of 1: %v", err)
		}
		keys := start(t, store, atonce.Policy{Name: "q", Places: 2, PerKey: func(key string) int {
			switch key {
			case "one":
				return 1
			case "panic":
				panic("x")
			}
			return -1
		}}, nil)
		for key, want := range map[string]int{"one": 1, "panic": 2, "wrong": 2} {
			if u, err := keys.Peek(ctx(), key); err != nil || u.Places != want {
				t.Errorf("%s: %+v, %v", key, u, err)
			}
		}
	})
}

func TestMaxRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lost, refused := make(chan int, 1), 0
		a := start(t, remote.NewMemory(), atonce.Policy{
			Name: "p", Places: 1, MaxRun: time.Minute,
			Lost:    func(_ string, n int) { lost <- n; panic("a hook") },
			Refused: func(string, error) { refused++; panic("a hook") },
		}, nil)
		p := a.acquire(t, "k") // and nobody releases it
		time.Sleep(59 * time.Second)
		a.refused(t, "k", atonce.ErrFull)
		time.Sleep(3 * time.Second)
		<-p.Lost()
		if n := <-lost; n != 1 {
			t.Errorf("the hook heard of %d places", n)
		}
		if refused != 1 {
			t.Errorf("the hook heard of %d refusals", refused)
		}
		q := a.acquire(t, "k")
		p.Release() // counts no more
		time.Sleep(200 * time.Millisecond)
		a.refused(t, "k", atonce.ErrFull)
		q.Release()
	})
}

func TestBadInput(t *testing.T) {
	for want, p := range map[string]atonce.Policy{
		"Policy.Name is \"a b\"":          {Name: "a b", Places: 1},
		"Policy.Places is 0":              {Name: "p"},
		"Policy.Places is -1":             {Name: "p", Places: -1},
		"Policy.Places is 1048577":        {Name: "p", Places: 1<<20 + 1},
		"Policy.Life is 1ms":              {Name: "p", Places: 1, Life: time.Millisecond},
		"Policy.MaxRun is 25h0m0s":        {Name: "p", Places: 1, MaxRun: 25 * time.Hour},
		"Policy.FailMode is 9":            {Name: "p", Places: 1, FailMode: 9},
		"Policy.Plans[\"x\"] is 0":        {Name: "p", Places: 1, Plans: map[string]int{"x": 0}},
		"Policy.Plans is a plan named \"": {Name: "p", Places: 1, Plans: map[string]int{"": 1}},
		"Policy.PerKey is set":            {Name: "p", Places: 1, Plans: map[string]int{"x": 1}, PerKey: func(string) int { return 1 }},
	} {
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := atonce.New(nil, atonce.Policy{Name: "p", Places: 1}); err == nil {
		t.Error("a nil Group was taken")
	}
	var none *atonce.Place
	none.Release()
	var zero *atonce.Limiter
	if _, err := zero.Acquire(ctx(), "k"); !errors.Is(err, atonce.ErrInvalid) {
		t.Errorf("a nil Limiter: %v", err)
	}
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		a := start(t, store, atonce.Policy{Name: "p", Places: 2}, nil)
		a.refused(t, "", atonce.ErrInvalid)
		for _, n := range []int{0, -1, 3} {
			if _, err := a.For("k").N(n).Acquire(ctx()); !errors.Is(err, atonce.ErrInvalid) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%d places: %v", n, err)
			}
		}
		ended, cancel := context.WithCancel(ctx())
		cancel()
		if _, err := a.Acquire(ended, "k"); !errors.Is(err, context.Canceled) {
			t.Errorf("a context that has ended: %v", err)
		}
		long := strings.Repeat("x", 64<<10)
		p := a.acquire(t, long)
		if u, err := a.Peek(nil, long); err != nil || u.Running < 1 { //nolint:staticcheck // nil is what is tested
			t.Errorf("a key of 64 KiB: %+v, %v", u, err)
		}
		p.Release()
		p = a.acquire(t, "k")
		waits := make(chan error, 1)
		go func() {
			_, err := a.For("k").N(2).Wait(ctx())
			waits <- err
		}()
		synctest.Wait()
		if err := a.group.Close(ctx()); err != nil {
			t.Error(err)
		}
		if err := <-waits; !errors.Is(err, atonce.ErrClosed) {
			t.Errorf("who waited got %v", err)
		}
		p.Release()
		p.Release()
		a.refused(t, "k", atonce.ErrClosed)
		if _, err := a.Peek(ctx(), "k"); !errors.Is(err, atonce.ErrClosed) {
			t.Errorf("Peek: %v", err)
		}
		if _, err := atonce.New(a.group, atonce.Policy{Name: "q", Places: 1}); err == nil {
			t.Error("a closed Group was taken")
		}
	})
}

// TestKeysOfAnAttacker: what is kept follows what runs, not how many keys there were.
func TestKeysOfAnAttacker(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := start(t, remote.NewMemory(), atonce.Policy{Name: "p", Places: 2}, nil)
		most := 0
		for i := range 100_000 {
			if p, err := a.Acquire(ctx(), fmt.Sprint(i)); err == nil {
				p.Release()
			}
			if i%100 == 0 {
				time.Sleep(time.Millisecond)
				most = max(most, a.Stats().Keys)
			}
		}
		if most > 15_000 {
			t.Errorf("%d of 100 000 keys were kept", most)
		}
		time.Sleep(time.Second)
		if n := a.Stats().Keys; n != 0 {
			t.Errorf("%d keys are kept", n)
		}
	})
}

// TestRedisLosesTheKey: what runs is stated again within a second, and counts.
func TestRedisLosesTheKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		a := start(t, store, atonce.Policy{Name: "p", Places: 2}, nil)
		b := start(t, store, atonce.Policy{Name: "p", Places: 2}, nil)
		held := []*atonce.Place{a.acquire(t, "k"), b.acquire(t, "k")}
		store.Del(store.PlacesName("p", "k"))
		time.Sleep(1600 * time.Millisecond)
		a.refused(t, "k", atonce.ErrFull)
		for _, p := range held {
			select {
			case <-p.Lost():
				t.Error("nobody else got the place")
			default:
			}
			p.Release()
		}
	})
}

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
