package tiered_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// PeekN says what AllowN would, and takes nothing.
func TestPeekN(t *testing.T) {
	for _, algorithm := range algorithms {
		for _, used := range []int64{0, 4, 9, 10} {
			for _, n := range []int64{-1, 1, 5, 6, 10, 11, 1 << 41} {
				name := fmt.Sprintf("%v, %d used, %d asked", algorithm, used, n)
				synctest.Test(t, func(t *testing.T) {
					l := limiter(t, remote.NewMemory(), tiered.Policy{
						Name: "p", Limit: tiered.PerHour(10), Algorithm: algorithm, Lease: neverLeased,
					}, nil)
					for range used {
						l.Allow(ctx, "k")
					}
					time.Sleep(time.Second)
					peeked := l.PeekN(ctx, "k", n)
					if again := l.PeekN(ctx, "k", n); again != peeked {
						t.Errorf("%s: %+v, then %+v", name, peeked, again)
					}
					d := l.AllowN(ctx, "k", n)
					if peeked.Allowed != d.Allowed || peeked.Reason != d.Reason || peeked.Burst != d.Burst {
						t.Errorf("%s: %+v, and AllowN %+v", name, peeked, d)
					}
					// A peek's reply tells whole tokens, so its time may be that of a token longer.
					if later := peeked.RetryAfter - d.RetryAfter; algorithm == tiered.TokenBucket &&
						(later < -time.Microsecond || later > time.Hour/10) {
						t.Errorf("%s: retry after %v, AllowN says %v", name, peeked.RetryAfter, d.RetryAfter)
					}
				})
			}
		}
	}
}

// The state of every limit of a policy is that of a policy with this limit alone.
func TestPeekEach(t *testing.T) {
	for _, c := range []struct {
		name string
		p    tiered.Policy
		used int64
		want []tiered.Decision
	}{
		{
			"token buckets",
			tiered.Policy{Limit: tiered.PerMinute(10).And(tiered.PerHour(30), tiered.PerDay(100))},
			7,
			[]tiered.Decision{
				{LimitNumber: 1, Burst: 10, Remaining: 3, ResetAfter: 42 * time.Second},
				{LimitNumber: 2, Burst: 30, Remaining: 23, ResetAfter: 14 * time.Minute},
				{LimitNumber: 3, Burst: 100, Remaining: 93, ResetAfter: 7 * 24 * time.Hour / 100},
			},
		},
		{
			"one of them is used up",
			tiered.Policy{Limit: tiered.PerMinute(10).And(tiered.PerHour(30))},
			10,
			[]tiered.Decision{
				{LimitNumber: 1, Burst: 10, RetryAfter: 6 * time.Second, ResetAfter: time.Minute},
				{LimitNumber: 2, Burst: 30, Remaining: 20, ResetAfter: 20 * time.Minute},
			},
		},
		{
			"sliding windows",
			tiered.Policy{
				Limit: tiered.PerMinute(10).And(tiered.PerHour(30)), Algorithm: tiered.SlidingWindow,
			},
			10,
			[]tiered.Decision{
				{LimitNumber: 1, Burst: 10, RetryAfter: time.Minute, ResetAfter: time.Minute},
				{LimitNumber: 2, Burst: 30, Remaining: 20, ResetAfter: time.Hour},
			},
		},
		{
			"one limit",
			tiered.Policy{Limit: tiered.PerMinute(10)},
			4,
			[]tiered.Decision{{Burst: 10, Remaining: 6, ResetAfter: 24 * time.Second}},
		},
		{"no limit", tiered.Policy{Limit: tiered.Unlimited()}, 1, []tiered.Decision{{Remaining: 1 << 40, Burst: 1 << 40}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.p.Name, c.p.Lease = "api", neverLeased
			l := limiter(t, newTape(), c.p, nil)
			time.Sleep(10 * ms)
			want(t, l.AllowN(ctx, "k", c.used), tiered.Granted)
			all, err := l.PeekEach(ctx, "k")
			if err != nil || len(all) != len(c.want) {
				t.Fatalf("%s: %+v, %v", c.name, all, err)
			}
			for i, d := range all {
				w := c.want[i]
				near := func(is, must time.Duration) bool { return is >= must-must/20 && is <= must+must/20 }
				if d.LimitNumber != w.LimitNumber || c.name != "no limit" && (d.Burst != w.Burst ||
					d.Remaining != w.Remaining) ||
					d.Allowed != (w.Remaining > 0) || !near(d.ResetAfter, w.ResetAfter) || !near(d.RetryAfter,
					w.RetryAfter) {
					t.Errorf("%s: limit %d is %+v, want %+v", c.name, i, d, w)
				}
			}
			if d := l.Peek(ctx, "k"); c.name != "no limit" && d.Remaining != min(all[0].Remaining,
				all[len(all)-1].Remaining) {
				t.Errorf("%s: peeking changed the key: %+v", c.name, d)
			}
		})
	}
}

func TestPeekEachWithoutRedis(t *testing.T) {
	store := remote.NewMemory()
	l := limiter(t, store, tiered.Policy{Limit: tiered.PerMinute(10).And(tiered.PerHour(30))}, nil)
	store.Fail(errors.New("away"))
	if all, err := l.PeekEach(ctx, "k"); all != nil || !errors.Is(err, tiered.ErrUnavailable) {
		t.Errorf("%+v, %v", all, err)
	}
	if all, err := l.PeekEach(ctx, ""); all != nil || reasonOf(err) != tiered.InvalidKey {
		t.Errorf("%+v, %v", all, err)
	}
}

// Peek says what Allow says at the same instant: of a key that is refused all of it, and of one
// that is admitted what was left before. In an outage that is what the fail mode says.
func TestPeekSaysWhatAllowSays(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]tiered.Policy{
		"token bucket":     {Limit: tiered.PerHour(1)},
		"several limits":   {Limit: tiered.PerSecond(10).And(tiered.PerHour(1000))},
		"sliding log":      {Limit: tiered.PerMinute(10), Algorithm: tiered.SlidingLog},
		"sliding window":   {Limit: tiered.PerMinute(10), Algorithm: tiered.SlidingWindow},
		"fixed window":     {Limit: tiered.PerMinute(10), Algorithm: tiered.FixedWindow},
		"standing":         {Limit: tiered.PerMinute(60), Standing: 1.0 / 8},
		"share, then":      {Limit: tiered.PerMinute(10), FailMode: tiered.FailLocal},
		"nothing, then":    {Limit: tiered.PerMinute(10), FailMode: tiered.FailClosed},
		"everything, then": {Limit: tiered.PerMinute(10), FailMode: tiered.FailOpen},
		"a limit by its key": {
			Limit: tiered.PerMinute(10), PerKey: func(string) tiered.Limit { return tiered.PerMinute(5) },
		},
		"nothing is refused":   {Limit: tiered.PerMinute(10), Shadow: true},
		"a lease that is held": {Limit: tiered.PerSecond(500), Lease: tiered.Lease{Size: 100}},
	} {
		bubble(t, name, func(t *testing.T) {
			l, store := told(t, p)
			same := func() (d tiered.Decision) {
				t.Helper()
				synctest.Wait() // for what is under way
				peek := l.Peek(ctx, "k")
				d = l.Allow(ctx, "k")
				want := peek
				want.Tier = d.Tier
				if want.ResetAfter = d.ResetAfter; !peek.Allowed {
					want.ResetAfter = peek.ResetAfter
				} else if peek.Reason == tiered.Granted {
					want.Remaining--
				}
				if d != want {
					t.Fatalf("Peek says %+v\nand Allow at the same instant %+v", peek, d)
				}
				return d
			}
			for i := 0; i < 700 && same().Reason == tiered.Granted; i++ {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(p.Limit.Per / 2)
			for i := 0; i < 700 && same().Reason == tiered.Granted; i++ {
			}
			ok(t, l.For("k").N(1).Charge())
			same()
			time.Sleep(2 * p.Limit.Per)
			store.Fail(errors.New("down"))
			l.Allow(ctx, "k") // so that the breaker knows
			for range 5 {
				same()
				time.Sleep(time.Second)
			}
			if s := l.Stats(); s.Requests.Invalid+s.Requests.Canceled > 0 || p.Shadow &&
				s.Requests.Shadowed != s.Requests.Refused {
				t.Errorf("a look counts as a request: %+v", s.Requests)
			}
			store.Fail(nil)
		})
	}
}

// Peeks whose callers had left stayed in the queue, in front of decisions.
func TestLooksDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(40 * ms) // slow, but alive
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(10)}, nil)
		var all sync.WaitGroup
		for range 5000 {
			all.Go(func() { l.Peek(ctx, "k") })
			time.Sleep(100 * time.Microsecond)
		}
		all.Wait()
		n := tiered.Dispatch(l.Group()).Nodes()[0]
		if queued := n.Queued(); queued > 1000 {
			t.Errorf("%d in the queue", queued)
		}
	})
}

func TestPeekOfNothingKnowsTheRefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(10)}, nil)
		want(t, l.AllowN(ctx, "k", 10), tiered.Granted)
		store.loseRequests.Store(true)
		time.Sleep(500 * ms)
		if d := l.PeekN(ctx, "k", 0); d.Reason == tiered.Unknown || d.Remaining != 5 || d.Tier != tiered.Local {
			t.Errorf("%+v, want the 5 tokens that came since", d)
		}
		store.loseRequests.Store(false)
	})
}

// A raised limit counts from the first look at a key, though a look takes nothing: who looks until
// there is enough is not told the same time again and again. So does one in a process that has not
// used the key before.
func TestPeekAfterALimitWasRaised(t *testing.T) {
	for _, also := range [][]tiered.Limit{nil, {tiered.PerDay(5000)}} {
		for _, another := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s, p := remote.NewMemory(), tiered.Policy{Name: "api", Limit: tiered.PerHour(100).And(also...)}
				l := limiter(t, s, p, nil)
				for l.Allow(ctx, "k").Allowed {
				}
				if p.Limit = tiered.PerHour(10_000).And(also...); another {
					l = limiter(t, s, p, nil)
				} else {
					ok(t, l.SetPolicy(p))
				}
				d := l.PeekN(ctx, "k", 7)
				if d.Allowed || d.RetryAfter > 3*time.Second {
					t.Error(d)
				}
				time.Sleep(d.RetryAfter)
				if e := l.PeekN(ctx, "k", 7); !e.Allowed {
					t.Errorf("told %v, looked then, and is told %v", d.RetryAfter, e.RetryAfter)
				}
			})
		}
	}
}

// PeekEach does not admit what Allow and Peek refuse, because this process leaves what comes to
// others for a while.
func TestPeekEachInAHoldOff(t *testing.T) {
	for _, also := range [][]tiered.Limit{nil, {tiered.PerDay(10_000)}, {tiered.Per(50, 2*time.Second).WithBurst(20)}} {
		synctest.Test(t, func(t *testing.T) {
			p := tiered.Policy{Limit: tiered.PerSecond(10).WithBurst(40).And(also...), Lease: tiered.Lease{Size: 6}}
			l := limiter(t, remote.NewMemory(), p, nil)
			time.Sleep(4 * time.Second)
			for l.Allow(ctx, "k").Allowed {
			}
			for range 80 {
				time.Sleep(25 * ms)
				l.Allow(ctx, "k")
				each, err := l.PeekEach(ctx, "k")
				ok(t, err)
				all := true
				for _, d := range each {
					all = all && d.Allowed
				}
				if d := l.Peek(ctx, "k"); d.Allowed != all {
					t.Fatalf("Peek says %v, PeekEach %v", d, each)
				}
			}
		})
	}
}

// A look tells Redis what is spent of a lease and what is owed, if it is refused: what comes has no
// room before. So who comes back, or looks again, when it says finds the tokens.
func TestPeekAfterALeaseWasSpent(t *testing.T) {
	for what, c := range map[string]struct {
		limit tiered.Limit
		use   func(*tiered.Limiter)
		n     int64
	}{
		"spent": {tiered.PerSecond(100), func(l *tiered.Limiter) {
			for l.AllowN(ctx, "k", 100).Allowed {
			}
			time.Sleep(time.Second)
			l.AllowN(ctx, "k", 100)
		}, 2},
		"owed": {tiered.PerSecond(2).WithBurst(20), func(l *tiered.Limiter) { _ = l.For("k").N(2).Charge() }, 20},
	} {
		bubble(t, what, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: c.limit}, &tiered.Options{Random: func() float64 { return 0.5 }})
			time.Sleep(time.Second)
			c.use(l)
			d := l.PeekN(ctx, "k", c.n)
			time.Sleep(d.RetryAfter)
			if e := l.PeekN(ctx, "k", c.n); d.Allowed || !e.Allowed {
				t.Errorf("told %v, looked then, and is told %v", d.RetryAfter, e.RetryAfter)
			}
		})
	}
}
