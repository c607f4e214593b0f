package tiered_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The shortest histories of what package answers found.

// A call that waits and gives up counts in GaveUp only, also if its context ends while it asks Redis.
func TestWhoGivesUpIsNotCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(10*ms), direct("api", 5), nil)
		ctx, cancel := context.WithTimeout(t.Context(), 5*ms)
		defer cancel()
		if err := l.Wait(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if s := l.Stats(); s.Waiting.GaveUp != 1 || s.Requests.Canceled != 0 {
			t.Errorf("%d gave up, %+v", s.Waiting.GaveUp, s.Requests)
		}
	})
}

// A key in debt is told when to come back, and full later than that, also by a limit that the request carries.
func TestCarriedLimitIsResetAfterARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(ms), tiered.Policy{Limit: tiered.PerMinute(10).WithBurst(20)}, nil)
		ok(t, l.Charge("k", 60))
		time.Sleep(100 * ms) // Redis has heard of it
		d := l.For("k").N(2).WithLimit(tiered.Per(3, 10*time.Second)).Allow(t.Context())
		if want(t, d, tiered.Limited); d.ResetAfter < d.RetryAfter {
			t.Errorf("retry after %v, reset after %v", d.RetryAfter, d.ResetAfter)
		}
	})
}

// Peek takes no longer than Budget, also if its key is evicted meanwhile.
func TestPeekOfAnEvictedKeyTakesABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, direct("api", 5), &tiered.Options{MaxKeys: 1})
		want(t, l.Allow(t.Context(), "k"), tiered.Granted)
		store.loseRequests.Store(true)
		time.AfterFunc(tiered.DefaultBudget/2, func() { l.Allow(context.Background(), "other") })
		begin := time.Now()
		l.Peek(t.Context(), "k")
		if d := time.Since(begin); d > tiered.DefaultBudget {
			t.Errorf("Peek took %v", d)
		}
		store.loseRequests.Store(false)
	})
}

// A client that is alone and comes back when it was told is admitted: also if its process gave a lease back meanwhile, which
// is whole tokens and leaves the part of one that the refill brought, and if a standing share was renewed 40 times.
func TestComeBackAfterAWhile(t *testing.T) {
	type ask struct {
		cost  int64
		times int
	}
	for name, c := range map[string]struct {
		policy tiered.Policy
		asks   []ask // each until it is refused; then the client comes back
	}{
		"returned lease": {tiered.Policy{Limit: tiered.Per(30, 2*time.Second).WithBurst(60)}, []ask{{1, 40}, {2, 1}, {
			60,
			40,
		}}},
		"standing": {tiered.Policy{Limit: tiered.PerHour(30).WithBurst(20), Standing: tiered.StandingOn}, []ask{{
			1,
			40,
		}, {5, 40}, {1, 40}}},
	} {
		bubble(t, name, func(t *testing.T) {
			c.policy.Name = "api"
			l := limiter(t, remote.NewMemory(), c.policy, &tiered.Options{Random: func() float64 { return 0.5 }})
			time.Sleep(82 * time.Second) // until shares are in use
			for _, a := range c.asks {
				var d tiered.Decision
				for range a.times {
					if d = l.AllowN(t.Context(), "k", a.cost); !d.Allowed {
						break
					}
				}
				if d.Allowed {
					time.Sleep(30 * ms)
					continue
				}
				time.Sleep(d.RetryAfter)
				if e := l.AllowN(t.Context(), "k", a.cost); !e.Allowed {
					t.Errorf("%d: told %v, came back then, and is told %v", a.cost, d.RetryAfter, e.RetryAfter)
				}
			}
		})
	}
}

// What was told stays what it was if a lease goes back at another nanosecond: Redis counts microseconds.
func TestComeBackBetweenMicroseconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerSecond(7).WithBurst(100)},
			&tiered.Options{Budget: 5 * ms, Random: func() float64 { return 0.5 }})
		time.Sleep(70 * time.Second)
		want(t, l.AllowN(t.Context(), "k", 75), tiered.Granted)
		ok(t, l.Refund(t.Context(), "k", 75))
		time.Sleep(30*ms + 887)
		for range 40 {
			l.Allow(t.Context(), "k")
		}
		time.Sleep(738)
		d := l.AllowN(t.Context(), "k", 75)
		want(t, d, tiered.Limited)
		time.Sleep(d.RetryAfter)
		want(t, l.AllowN(t.Context(), "k", 75), tiered.Granted)
	})
}
