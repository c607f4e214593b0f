package atonce_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
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

// ask acquires a place beside the test, and tells how that ended.
func (p *process) ask(key string) <-chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := p.Acquire(ctx(), key)
		ended <- err
	}()
	return ended
}

// TestCloseGivesBackWhatIsOnItsWay: the answer comes after Close has begun, and nobody has asked
// for it any more.
func TestCloseGivesBackWhatIsOnItsWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		a := start(t, store, atonce.Policy{Name: "p", Places: 1}, nil)
		b := start(t, store, atonce.Policy{Name: "p", Places: 1}, nil)
		a.acquire(t, "another").Release() // the node is known
		a.link.trip = 4 * time.Millisecond
		asked := a.ask("k")
		time.Sleep(3 * time.Millisecond)
		if err := a.group.Close(ctx()); err != nil {
			t.Error(err)
		}
		if err := <-asked; !errors.Is(err, atonce.ErrClosed) {
			t.Errorf("who asked got %v", err)
		}
		b.acquire(t, "k").Release()
	})
}

// TestCloseGivesBackWhatItMayNotUse: a request of a small plan asks while Close begins. By its plan,
// others have all places, so what another request has just given back is of no use here.
func TestCloseGivesBackWhatItMayNotUse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		policy := atonce.Policy{Name: "p", Places: 1, Plans: map[string]int{"pro": 4}}
		a, b := start(t, store, policy, nil), start(t, store, policy, nil)
		two := func(p *process) *atonce.Place {
			t.Helper()
			place, err := p.For("k").WithPlan("pro").N(2).Acquire(ctx())
			if err != nil {
				t.Fatal(err)
			}
			return place
		}
		held, mine := two(b), two(a)
		a.refused(t, "k", atonce.ErrFull)
		time.Sleep(15 * time.Millisecond) // it is not remembered any more
		a.link.trip = 4 * time.Millisecond
		asked := a.ask("k")
		time.Sleep(3 * time.Millisecond)
		mine.Release()
		if err := a.group.Close(ctx()); err != nil {
			t.Error(err)
		}
		if err := <-asked; !errors.Is(err, atonce.ErrClosed) {
			t.Errorf("who asked got %v", err)
		}
		two(b).Release()
		held.Release()
	})
}
