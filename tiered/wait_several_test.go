package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestWaitForSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		p := func(name string, l tiered.Limit) tiered.Policy {
			return tiered.Policy{Name: name, Limit: l, Lease: neverLeased}
		}
		l := several(t, store, nil, p("second", tiered.PerSecond(1)), p("three", tiered.Limit{
			Tokens: 1, Per: 3 * time.Second,
		}))
		uses := tiered.All(l[0].For("k"), l[1].For("k"))
		start := time.Now()
		for i := range 4 {
			ok(t, uses.Wait(t.Context()))
			if took, least := time.Since(start), time.Duration(3*i)*time.Second; took < least || took > least+200*ms {
				t.Errorf("number %d after %v, want %v", i, took, least)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := uses.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, tiered.ErrLimited) {
			t.Errorf("%v, want to be refused for the context's deadline", err)
		}
		time.Sleep(time.Second + 100*ms)
		if n := level(t, store.Memory, l[0], "k"); n != 1 {
			t.Errorf("%d left, want 1: who gave up took nothing", n)
		}
		if err := uses.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v of a context that has ended", err)
		}
		noTurns(t, l[0].Group())
		books(t, l[0].Group())
	})
}

// Waiters at one key are served in the order in which they came, whether or not they need other
// keys too.
func TestWaitersOfSeveralStandInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := several(t, newDistant(ms), nil, tiered.Policy{Name: "tenant", Limit: tiered.PerSecond(1)}, direct("user", 100))
		want(t, l[0].Allow(ctx, "acme"), tiered.Granted)
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				var err error
				if i%2 == 0 {
					err = tiered.All(l[1].For(fmt.Sprint(i)), l[0].For("acme")).Wait(ctx)
				} else {
					err = l[0].Wait(ctx, "acme")
				}
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			})
			time.Sleep(10 * ms)
		}
		all.Wait()
		for i, who := range order {
			if who != i {
				t.Fatalf("they went in the order %v", order)
			}
		}
	})
}

// Two requests that each want the last token of the same two keys, named in opposite orders: one of
// them is admitted, in every round, however the two meet; and none of those who wait waits for
// ever.
func TestOneOfTwoIsAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, direct("a", 1), direct("b", 1))
		time.Sleep(time.Second)
		for round := range 500 {
			key := fmt.Sprint(round)
			var all sync.WaitGroup
			var got [2]tiered.Decision
			all.Go(func() { got[0] = tiered.All(l[0].For(key), l[1].For(key)).Allow(ctx) })
			all.Go(func() { got[1] = tiered.All(l[1].For(key), l[0].For(key)).Allow(ctx) })
			all.Wait()
			if got[0].Allowed == got[1].Allowed {
				t.Fatalf("round %d: %+v and %+v", round, got[0], got[1])
			}
		}
	})
}

// Waiters of several processes that need overlapping keys of little burst all come to an end, in
// about the time that an ideal bucket takes, although each holds for a moment what another needs.
func TestWaitersThatNeedEachOthersKeysComeToAnEnd(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		processes := rapid.IntRange(1, 3).Draw(rt, "processes")
		keys := rapid.IntRange(2, 4).Draw(rt, "keys")
		waiters := rapid.IntRange(2, 12).Draw(rt, "waiters")
		type want struct{ process, first, second int }
		var wants []want
		for range waiters {
			wants = append(wants, want{
				rapid.IntRange(0, processes-1).Draw(rt, "process"),
				rapid.IntRange(0, keys-1).Draw(rt, "first"), rapid.IntRange(0, keys-1).Draw(rt, "second"),
			})
		}
		var failure string
		synctest.Test(t, func(t *testing.T) {
			memory := remote.NewMemory()
			var l []*tiered.Limiter
			for range processes {
				l = append(l, several(t, &distant{Memory: memory, trip: ms}, nil,
					tiered.Policy{Limit: tiered.PerSecond(1).WithBurst(2)})...)
			}
			start := time.Now()
			need := map[string]int{}
			var all sync.WaitGroup
			var mu sync.Mutex
			for i, w := range wants {
				a, b := fmt.Sprint(w.first), fmt.Sprint(w.second)
				need[a]++
				need[b]++
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					p := l[w.process]
					if err := tiered.All(p.For(a), p.For(b)).Wait(ctx); err != nil {
						mu.Lock()
						failure = fmt.Sprintf("waiter %d of %+v: %v", i, wants, err)
						mu.Unlock()
					}
				})
			}
			all.Wait()
			most := 0
			for _, n := range need {
				most = max(most, n)
			}
			// Each key brings one per second. What goes back is on its way for 50 ms, and is parked
			// in a lease for a second.
			if took, bound := time.Since(start), time.Duration(2*most+4)*time.Second; took > bound {
				failure = fmt.Sprintf("%+v took %v, want %v at most", wants, took, bound)
			}
		})
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

// Each of two processes is nearer to another node, so each is first at one of two keys and refuses
// the other. Without a random delay they would do so for ever.
func TestWaitersWhoAreEachFirstAtOneKeyPartInTime(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			one, other := remote.NewMemory(), remote.NewMemory()
			p := tiered.Policy{Name: "api", Limit: tiered.PerSecond(1), Lease: neverLeased}
			at := func(m *remote.Memory, trip time.Duration) *tiered.Limiter {
				return several(t, &distant{Memory: m, trip: trip}, nil, p)[0]
			}
			a1, b1 := at(one, ms), at(other, 9*ms)
			a2, b2 := at(one, 9*ms), at(other, ms)
			time.Sleep(time.Second)
			start := time.Now()
			var all sync.WaitGroup
			wait := func(u tiered.Use) {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					ok(t, u.Wait(ctx))
				})
			}
			for range 2 {
				wait(tiered.All(a1.For("k"), b1.For("k")))
				wait(tiered.All(a2.For("k"), b2.For("k")))
			}
			all.Wait()
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("four tokens of each key took %v", took)
			}
		})
	}
}

// A return whose reply is lost is not repeated, because it may have been executed.
func TestLostGiveBackIsBurnt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, direct("a", 10), direct("b", 1))
		want(t, tiered.All(l[0].For("k").N(3), l[1].For("k")).Allow(ctx), tiered.Granted)
		want(t, tiered.All(l[0].For("k").N(4), l[1].For("k")).Allow(ctx), tiered.Limited)
		store.loseRequests.Store(true) // the four are on their way
		time.Sleep(300 * ms)
		store.loseRequests.Store(false)
		time.Sleep(10 * time.Second)
		if s := l[0].Group().Stats().Policies["a"]; s.Leases.Burnt != 4 || s.Leases.Spent != 3 || s.Leases.Held != 0 || s.Leases.Returned != 0 {
			t.Errorf("%+v, want 3 spent and 4 burnt", s)
		}
		if n := level(t, store.Memory, l[0], "k"); n != 3 {
			t.Errorf("%d left, want 3", n)
		}
		books(t, l[0].Group())
	})
}
