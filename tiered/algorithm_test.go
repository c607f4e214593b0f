package tiered_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// windowPolicies are those of ten per minute.
func windowPolicies() []tiered.Policy {
	limit := tiered.Limit{Tokens: 10, Per: time.Minute}
	return []tiered.Policy{
		{Name: "log", Limit: limit, Algorithm: tiered.SlidingLog},
		{Name: "fixed", Limit: limit, Algorithm: tiered.FixedWindow, Lease: neverLeased},
		{Name: "fixed-leased", Limit: limit, Algorithm: tiered.FixedWindow},
		{Name: "sliding", Limit: limit, Algorithm: tiered.SlidingWindow, Lease: neverLeased},
		{Name: "sliding-leased", Limit: limit, Algorithm: tiered.SlidingWindow},
		{Name: "sliding-two", Limit: limit, Algorithm: tiered.SlidingWindow, Also: []tiered.Limit{{
			Tokens: 100,
			Per:    time.Hour,
		}}},
	}
}

// eachWindow runs f in a bubble with a limiter of each algorithm over a Memory.
func eachWindow(t *testing.T, f func(t *testing.T, l *tiered.Limiter, m *remote.Memory)) {
	for _, p := range windowPolicies() {
		bubble(t, p.Name, func(t *testing.T) {
			m := remote.NewMemory()
			l := limiter(t, m, p, nil)
			f(t, l, m)
		})
	}
}

// A window admits what it holds and refuses the next request. The retry time is when that request is admitted, and
// it is not admitted much earlier.
func TestWindowsRefuseAndAdmitAgain(t *testing.T) {
	eachWindow(t, func(t *testing.T, l *tiered.Limiter, _ *remote.Memory) {
		for i := range 10 {
			if d := l.Allow(ctx, "k"); !d.Allowed {
				t.Fatalf("request %d: %+v", i, d)
			}
		}
		d := l.Allow(ctx, "k")
		if d.Allowed || d.Reason != tiered.Limited || d.RetryAfter <= 0 || d.RetryAfter > 63*time.Second ||
			d.ResetAfter < d.RetryAfter-2*time.Second {
			t.Fatalf("%+v", d)
		}
		if d := l.Peek(ctx, "k"); d.Allowed || d.RetryAfter <= 0 {
			t.Errorf("peek: %+v", d)
		}
		time.Sleep(d.RetryAfter)
		if d := l.Allow(ctx, "k"); !d.Allowed {
			t.Errorf("after its own retry time: %+v", d)
		}
	})
}

// Returned tokens can be taken again, a higher cost is charged, and a Reset forgets both.
func TestWindowsGiveBack(t *testing.T) {
	eachWindow(t, func(t *testing.T, l *tiered.Limiter, _ *remote.Memory) {
		r := l.ReserveN(ctx, "k", 10)
		if !r.Allowed {
			t.Fatal(r.Decision)
		}
		time.Sleep(2 * time.Second)
		if d := l.Allow(ctx, "k"); d.Allowed {
			t.Fatalf("%+v", d)
		}
		r.Settle(4)
		time.Sleep(6 * time.Second) // the refund is under way, and a denial is believed for 5 s
		if d := l.Peek(ctx, "k"); d.Remaining != 6 {
			t.Errorf("after the refund: %+v", d)
		}
		if d := l.AllowN(ctx, "k", 7); d.Allowed {
			t.Errorf("more than came back: %+v", d)
		}
		time.Sleep(6 * time.Second)
		r = l.ReserveN(ctx, "k", 2)
		if !r.Allowed {
			t.Fatalf("what came back: %+v", r.Decision)
		}
		r.Settle(5) // 3 more
		time.Sleep(time.Second)
		if d := l.Peek(ctx, "k"); d.Remaining != 1 {
			t.Errorf("after the debt: %+v", d)
		}
		ok(t, l.Reset(ctx, "k"))
		if d := l.Peek(ctx, "k"); d.Remaining != 10 {
			t.Errorf("after the reset: %+v", d)
		}
		if d := l.AllowN(ctx, "k", 10); !d.Allowed {
			t.Errorf("after the reset: %+v", d)
		}
	})
}

// What the share admitted in an outage is charged to the window in which it was admitted.
func TestWindowsChargeAnOutage(t *testing.T) {
	eachWindow(t, func(t *testing.T, l *tiered.Limiter, m *remote.Memory) {
		time.Sleep(time.Second)
		if d := l.Allow(ctx, "k"); !d.Allowed {
			t.Fatal(d)
		}
		time.Sleep(3 * time.Second) // a lease is over
		m.Fail(context.DeadlineExceeded)
		shared := 0
		for range 20 {
			if d := l.Allow(ctx, "k"); d.Reason == tiered.Fallback {
				shared++
			}
			time.Sleep(50 * time.Millisecond)
		}
		if shared != 9 {
			t.Fatalf("the share admitted %d", shared)
		}
		m.Fail(nil)
		time.Sleep(3 * time.Second)
		l.Allow(ctx, "k") // settles
		time.Sleep(3 * time.Second)
		if d := l.Peek(ctx, "k"); d.Remaining > 3 { // a debt is cut where a lease, a quarter at most, is out meanwhile
			t.Errorf("%+v", d)
		}
		if s := l.Group().Stats().Policies[l.Policy().Name]; s.Costs.Settled == 0 {
			t.Errorf("%+v", s)
		}
	})
}

// With several buckets on a key the tightest decides, and leased and returned tokens count in each.
func TestSeveralBuckets(t *testing.T) {
	for _, size := range []int64{0, tiered.NoLease} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{
				Name: "two", Limit: tiered.PerSecond(10), Also: []tiered.Limit{tiered.PerHour(100)}, Lease: tiered.Lease{Size: size},
			}, nil)
			admitted, first := 0, 0
			for i := range 60 * 20 { // a minute at 20 per second
				if d := l.Allow(ctx, "k"); d.Allowed {
					admitted++
				}
				if i == 19 {
					first = admitted
				}
				time.Sleep(50 * time.Millisecond)
			}
			if first < 10 || first > 20 || admitted < 98 || admitted > 102 {
				t.Errorf("size %d: %d in the first second, %d in a minute", size, first, admitted)
			}
			d := l.Allow(ctx, "k")
			if d.Allowed || d.RetryAfter < time.Second || d.RetryAfter > 36*time.Second {
				t.Errorf("%+v", d)
			}
			if d := l.AllowN(ctx, "k", 11); d.Reason != tiered.ExceedsBurst {
				t.Errorf("more than the smaller burst: %+v", d)
			}
			ok(t, l.Reset(ctx, "k"))
			time.Sleep(5 * time.Second)
			r := l.ReserveN(ctx, "k", 10)
			if !r.Allowed {
				t.Fatal(r.Decision)
			}
			r.Cancel()
			time.Sleep(time.Second)
			if d := l.Peek(ctx, "k"); d.Remaining != 10 {
				t.Errorf("after the refund: %+v", d)
			}
		})
	}
}

// windows are all that counts otherwise than one token bucket.
var windows = []tiered.Policy{
	{Name: "fixed", Algorithm: tiered.FixedWindow, Limit: tiered.PerMinute(10)},
	{Name: "log", Algorithm: tiered.SlidingLog, Limit: tiered.PerMinute(10)},
	{Name: "sliding", Algorithm: tiered.SlidingWindow, Limit: tiered.PerMinute(10)},
	{Name: "direct", Algorithm: tiered.SlidingWindow, Limit: tiered.PerMinute(10), Lease: neverLeased},
	{Name: "buckets", Limit: tiered.PerMinute(10), Also: []tiered.Limit{tiered.PerHour(100)}},
}

// admitted asks until a request is refused, and reports how many were not.
func admitted(t *testing.T, l *tiered.Limiter, key string) (n int) {
	t.Helper()
	for {
		d := l.Allow(t.Context(), key)
		if !d.Allowed {
			want(t, d, tiered.Limited)
			return n
		}
		n++
	}
}

// The limit of a window is raised and lowered like any other. No tokens are created or lost.
func TestWindowsAtRunTime(t *testing.T) {
	for _, p := range windows {
		bubble(t, p.Name, func(t *testing.T) {
			l := several(t, newDistant(ms), nil, p)[0]
			time.Sleep(time.Second)
			if n := admitted(t, l, "k"); n != 10 {
				t.Errorf("%d of 10", n)
			}
			more := p
			more.Limit.Tokens = 15
			ok(t, l.SetPolicy(more))
			// A token bucket goes on from the level it had; a window from what it has counted.
			raised := 5
			if p.Algorithm == tiered.TokenBucket {
				raised = 0
			}
			if n := admitted(t, l, "k"); n != raised {
				t.Errorf("%d more at once, want %d", n, raised)
			}
			if n := admitted(t, l, "new"); n != 15 {
				t.Errorf("%d of 15", n)
			}
			ok(t, l.SetPolicy(p))
			time.Sleep(3 * time.Minute)
			if n := admitted(t, l, "k"); n != 10 {
				t.Errorf("%d of 10 afterwards", n)
			}

			for _, change := range []func(*tiered.Policy){
				func(p *tiered.Policy) { p.Algorithm = (p.Algorithm + 1) % 4 },
				func(p *tiered.Policy) { p.Also = append([]tiered.Limit{tiered.PerDay(1000)}, p.Also...) },
				func(p *tiered.Policy) { p.Algorithm, p.Calendar = tiered.FixedWindow, true },
			} {
				q := p
				change(&q)
				if err := l.SetPolicy(q); err == nil {
					t.Errorf("%+v took the place of %+v", q, p)
				}
			}
			other := p
			other.Limit.Per = 2 * time.Minute
			err := l.SetPolicy(other)
			if may := p.Algorithm == tiered.SlidingWindow; may != (err == nil) ||
				!may && !strings.Contains(err.Error(), "must stay") {
				t.Errorf("another period: %v", err)
			}
		})
	}
}

// PerKey may give a window another limit, Blocked or Unlimited. Another period is invalid if bucket names contain it.
func TestPerKeyOfWindows(t *testing.T) {
	for _, p := range windows {
		t.Run(p.Name, func(t *testing.T) {
			p.PerKey = func(key string) tiered.Limit {
				return map[string]tiered.Limit{
					"few": tiered.PerMinute(3), "any": tiered.Unlimited(), "none": tiered.Blocked(), "hour": tiered.PerHour(4), "bad": {Tokens: -1},
				}[key]
			}
			store := remote.NewMemory()
			if len(p.Also) > 0 {
				if _, err := tiered.New(store, p, nil); err == nil ||
					!strings.Contains(err.Error(), "Policy.Also is 1 limits: must be empty with PerKey") {
					t.Fatalf("%v", err)
				}
				return
			}
			synctest.Test(t, func(t *testing.T) {
				l := several(t, newDistant(ms), nil, p)[0]
				time.Sleep(time.Second)
				hour := map[tiered.Algorithm]int{
					tiered.FixedWindow: 10, tiered.SlidingLog: 10,
					tiered.SlidingWindow: 4,
				}[p.Algorithm]
				for key, n := range map[string]int{"few": 3, "other": 10, "bad": 10, "hour": hour} {
					if got := admitted(t, l, key); got != n {
						t.Errorf("%s: %d, want %d", key, got, n)
					}
				}
				for range 20 {
					want(t, l.Allow(t.Context(), "any"), tiered.Granted)
					want(t, l.Allow(t.Context(), "none"), tiered.ExceedsBurst)
				}
				faults := int64(1)
				if hour == 10 {
					faults = 2
				}
				if n := l.Group().Stats().Policies[p.Name].Faults.PerKey; n != faults {
					t.Errorf("%d faults of PerKey, want %d", n, faults)
				}
			})
		})
	}
}
