package tiered_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// These are bugs that were found once, each with the course of events that showed it.

// A refund is credited only under a deadline within one ttl: with a Timeout beyond that, Reset reported nil and did
// nothing.
func TestResetWithALongTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(ms), tiered.Policy{Limit: tiered.PerHour(10)},
			&tiered.Options{Timeout: 10 * time.Second})
		want(t, l.AllowN(ctx, "k", 10), tiered.Granted)
		ok(t, l.Reset(ctx, "k"))
		want(t, l.Allow(ctx, "k"), tiered.Granted)
	})
}

// Just above what a node can answer, requests whose time was nearly over took the places of others: of 70 000 per
// second that 64 000 could be answered of, 21 000 were.
func TestAboveCapacityThereIsNoCollapse(t *testing.T) {
	notUnderRace(t)
	for _, c := range []struct {
		trip time.Duration
		load int // per ms
	}{{ms, 70}, {ms, 100}, {2 * ms, 40}, {10 * ms, 8}} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, newDistant(c.trip), tiered.Policy{
				Limit:    tiered.PerHour(1000),
				FailMode: tiered.FailClosed,
			}, nil)
			time.Sleep(50 * ms)
			var all sync.WaitGroup
			var granted atomic.Int64
			key := 0
			for range 500 {
				for range c.load {
					key++
					name := strconv.Itoa(key)
					all.Go(func() {
						if l.Allow(context.Background(), name).Allowed {
							granted.Add(1)
						}
					})
				}
				time.Sleep(ms)
			}
			all.Wait()
			capacity := float64(tiered.DefaultMaxInFlight) / c.trip.Seconds()
			rate := float64(granted.Load()) / 0.5
			t.Logf("round trip %v, %d/s offered: %.0f/s answered of %.0f/s", c.trip, c.load*1000, rate, capacity)
			if b := tiered.Dispatch(l.Group()).Nodes()[0].State(); b != failover.Closed {
				t.Errorf("round trip %v: a flood of keys opened the breaker", c.trip)
			}
			if rate < 0.6*capacity {
				t.Errorf("round trip %v: %.0f/s, want 60 %% of %.0f/s at least", c.trip, rate, capacity)
			}
		})
	}
}

// A request for more tokens than there were also refused a cheap one, for which there were enough.
func TestDearRequestDoesNotRefuseACheapOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(ms), tiered.Policy{Limit: tiered.PerHour(10)}, nil)
		want(t, l.AllowN(ctx, "k", 5), tiered.Granted)
		var all sync.WaitGroup
		all.Go(func() {
			if d := l.AllowN(ctx, "k", 8); d.Reason != tiered.Limited || d.Remaining != 5 {
				t.Errorf("%+v", d)
			}
		})
		time.Sleep(100 * time.Microsecond)
		want(t, l.Allow(ctx, "k"), tiered.Granted)
		all.Wait()
	})
}

// Peeks whose callers had left stayed in the queue, in front of decisions.
func TestLooksDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(40 * ms) // slow, but alive
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(10)}, nil)
		var all sync.WaitGroup
		for range 5000 {
			all.Go(func() { l.Peek(context.Background(), "k") })
			time.Sleep(100 * time.Microsecond)
		}
		all.Wait()
		n := tiered.Dispatch(l.Group()).Nodes()[0]
		if queued := n.Stats().Queued; queued > 1000 {
			t.Errorf("%d in the queue", queued)
		}
	})
}

func TestPeekLocalKnowsTheRefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(10)}, nil)
		want(t, l.AllowN(context.Background(), "k", 10), tiered.Granted)
		store.loseRequests.Store(true)
		time.Sleep(500 * ms)
		if d, ok := l.PeekLocal("k"); !ok || d.Remaining != 5 || d.Tier != tiered.Local {
			t.Errorf("%+v %v, want the 5 tokens that came since", d, ok)
		}
		store.loseRequests.Store(false)
	})
}

// What was queued went on being sent long after a Close that could not wait for it.
func TestCloseThatCannotWaitEndsTheCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(10 * ms)
		l := must(tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerHour(1000)}, nil))
		for range 4 {
			var all sync.WaitGroup
			for i := range 2000 {
				all.Go(func() { l.Allow(ctx, strconv.Itoa(i)) })
				if i%20 == 19 {
					time.Sleep(5 * ms)
				}
			}
			all.Wait()
		}
		soon, cancel := context.WithTimeout(ctx, 10*ms)
		defer cancel()
		_ = l.Close(soon)
		time.Sleep(3 * tiered.DefaultTimeout)
		n := store.calls.Load()
		time.Sleep(time.Second)
		if late := store.calls.Load() - n; late > 0 {
			t.Errorf("%d calls later than three Timeouts after Close", late)
		}
	})
}

// A flood of unknown keys, more than the node can be asked about, is answered by the fail mode; others are not.
func TestFloodConcernsOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(ms), tiered.Policy{Limit: tiered.PerSecond(10_000), FailMode: tiered.FailOpen},
			&tiered.Options{MaxInFlight: 8})
		warm(t, l, "hot", 1500)
		var all sync.WaitGroup
		var opened, hotElsewhere atomic.Int64
		for i := range 20_000 {
			key := strconv.Itoa(i)
			all.Go(func() {
				if l.Allow(ctx, key).Reason == tiered.Open {
					opened.Add(1)
				}
			})
			if i%40 == 0 {
				if d := l.Allow(ctx, "hot"); d.Reason != tiered.Granted || d.Tier != tiered.Local {
					hotElsewhere.Add(1)
				}
				time.Sleep(ms)
			}
		}
		all.Wait()
		n := tiered.Dispatch(l.Group()).Nodes()[0]
		t.Logf("%d of 20000 answered by the fail mode, %d of 500 decisions of the hot key not by its lease",
			opened.Load(), hotElsewhere.Load())
		if opened.Load() == 0 {
			t.Error("the flood was no flood: this shows nothing")
		}
		if n.State() != failover.Closed || hotElsewhere.Load() > 0 {
			t.Errorf("breaker %v, %d decisions of the hot key not by its lease", n.State(), hotElsewhere.Load())
		}
	})
}

// A key without leases took everything directly, as long as somebody waited: what it owed, and what was given back,
// never left.
func TestBusyKeyWithoutLeasesSettlesAndRefunds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(1000), Lease: neverLeased},
			&tiered.Options{Processes: 1})
		r := l.ReserveN(context.Background(), "k", 1) // before the crowd, which would not let it through
		want(t, r.Decision, tiered.Granted)
		ctx, stop := context.WithCancel(context.Background())
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { // somebody waits whenever a call leaves
				for ctx.Err() == nil {
					l.Allow(context.Background(), "k")
					time.Sleep(100 * time.Microsecond)
				}
			})
		}
		time.Sleep(100 * ms)
		before := l.Stats().Leases.Returned
		r.Cancel()
		time.Sleep(50 * ms)
		if l.Stats().Leases.Returned == before {
			t.Error("the refund has not left within 50 ms")
		}
		store.loseRequests.Store(true)
		time.Sleep(3 * time.Second)
		store.loseRequests.Store(false)
		time.Sleep(3 * time.Second)
		if s := l.Stats(); s.Tokens.Fallback == 0 || s.Costs.Settled != s.Tokens.Fallback {
			t.Errorf("%d admitted alone, %d settled", s.Tokens.Fallback, s.Costs.Settled)
		}
		stop()
		all.Wait()
	})
}

// A lease of a key that was poisoned since has nowhere to go back to, and Close does not wait for its end.
func TestLeaseOfAPoisonedKeyDoesNotHoldUpClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := poisoned(newDistant(ms), "nothing yet")
		l := must(tiered.New(store, tiered.Policy{
			Name: "api", Limit: tiered.PerSecond(1000),
			Lease: tiered.Lease{Period: 5 * time.Second},
		}, nil))
		for range 500 {
			l.Allow(context.Background(), "bad")
			time.Sleep(2 * ms)
		}
		if held := l.Stats().Leases.Held; held < 20 {
			t.Errorf("only %d held: this shows nothing", held)
		}
		store.only = "bad"
		start := time.Now()
		closeIn(t, l, time.Minute)
		if d := time.Since(start); d > 100*ms {
			t.Errorf("Close took %v", d)
		}
		if s := l.Stats(); s.Leases.Held != 0 || s.Leases.Granted != s.Leases.Spent+s.Leases.Returned+s.Leases.Burnt {
			t.Errorf("tokens are missing from the books: %+v", s)
		}
	})
}
