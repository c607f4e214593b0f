package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// What there is, is granted to the token: by a lease, by Redis, by a fail mode, and by every algorithm.
func TestAllowAtMost(t *testing.T) {
	down := errors.New("down")
	hour := func(p tiered.Policy) tiered.Policy { p.Limit = tiered.PerHour(10); return p }
	ten := hour(tiered.Policy{})
	for name, c := range map[string]struct {
		policy tiered.Policy
		used   int64
		down   bool
		n      int64
		want   int64
		reason tiered.Reason
	}{
		"enough":              {ten, 2, false, 5, 5, tiered.Granted},
		"fewer":               {ten, 7, false, 5, 3, tiered.Granted},
		"none":                {ten, 10, false, 5, 0, tiered.Limited},
		"more than the burst": {ten, 3, false, 99, 7, tiered.Granted},
		"one":                 {ten, 9, false, 1, 1, tiered.Granted},
		"no number":           {ten, 0, false, 0, 0, tiered.InvalidCost},
		"leased": {
			tiered.Policy{Limit: tiered.PerHour(400), Lease: tiered.Lease{Size: 100}}, 360, false, 99, 40, tiered.Granted,
		},
		"fixed window":   {hour(tiered.Policy{Algorithm: tiered.FixedWindow}), 7, false, 5, 3, tiered.Granted},
		"sliding window": {hour(tiered.Policy{Algorithm: tiered.SlidingWindow}), 7, false, 5, 3, tiered.Granted},
		"sliding log":    {hour(tiered.Policy{Algorithm: tiered.SlidingLog}), 7, false, 5, 3, tiered.Granted},
		"several limits": {
			tiered.Policy{Limit: tiered.PerHour(100), Also: []tiered.Limit{tiered.PerDay(10)}}, 7, false, 5, 3, tiered.Granted,
		},
		"the share":   {ten, 0, true, 9, 5, tiered.Fallback}, // of two processes
		"fail-open":   {hour(tiered.Policy{FailMode: tiered.FailOpen}), 0, true, 9, 9, tiered.Open},
		"fail-closed": {hour(tiered.Policy{FailMode: tiered.FailClosed}), 0, true, 9, 0, tiered.Unavailable},
		"unlimited":   {tiered.Policy{Limit: tiered.Unlimited()}, 0, false, 1 << 39, 1 << 39, tiered.Granted},
		"blocked":     {tiered.Policy{Limit: tiered.Blocked()}, 0, false, 5, 0, tiered.ExceedsBurst},
	} {
		bubble(t, name, func(t *testing.T) {
			store := remote.NewMemory()
			c.policy.Name = "p"
			l := limiter(t, store, c.policy, &tiered.Options{Processes: 2})
			if c.used > 0 {
				if d := l.AllowN(t.Context(), "k", c.used); !d.Allowed {
					t.Fatal(d)
				}
			}
			if c.down {
				store.Fail(down)
			}
			got, d := l.AllowAtMost(t.Context(), "k", c.n)
			if got != c.want || d.Reason != c.reason || d.Allowed != (got > 0) {
				t.Errorf("%d, %v, want %d, %v", got, d, c.want, c.reason)
			}
		})
	}
}

// PeekN says what AllowN would, and takes nothing.
func TestPeekN(t *testing.T) {
	for _, algorithm := range algorithms {
		for _, used := range []int64{0, 4, 9, 10} {
			for _, n := range []int64{-1, 0, 1, 5, 6, 10, 11, 1 << 41} {
				name := fmt.Sprintf("%v, %d used, %d asked", algorithm, used, n)
				synctest.Test(t, func(t *testing.T) {
					l := limiter(t, remote.NewMemory(), tiered.Policy{
						Name: "p", Limit: tiered.PerHour(10), Algorithm: algorithm, Lease: neverLeased,
					}, nil)
					for range used {
						l.Allow(t.Context(), "k")
					}
					time.Sleep(time.Second)
					peeked := l.PeekN(t.Context(), "k", n)
					if again := l.PeekN(t.Context(), "k", n); again != peeked {
						t.Errorf("%s: %+v, then %+v", name, peeked, again)
					}
					d := l.AllowN(t.Context(), "k", n)
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

func TestSetLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{
			Name: "p", Limit: tiered.PerHour(10),
			FailMode: tiered.FailOpen,
		}, nil)
		if err := l.SetLimit(tiered.PerHour(3)); err != nil || l.Policy().Limit != tiered.PerHour(3) ||
			l.Policy().FailMode != tiered.FailOpen {
			t.Errorf("%v, %+v", err, l.Policy())
		}
		if err := l.SetLimit(tiered.Limit{}); err == nil || l.Policy().Limit != tiered.PerHour(3) {
			t.Errorf("%v, %+v", err, l.Policy())
		}
	})
}

// What the standing share gave is told, also if the attempt to get more ends with the caller's context.
func TestAllowAtMostThatEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(10*ms), tiered.Policy{
			Limit: tiered.PerMinute(800), Standing: tiered.StandingOn, FailMode: tiered.FailClosed,
		}, nil)
		time.Sleep(3 * time.Minute) // the share has 100
		want(t, l.AllowN(t.Context(), "user", 690), tiered.Granted)
		ctx, cancel := context.WithTimeout(t.Context(), 25*ms) // 10 ms before that the second round trip is under way
		defer cancel()
		if n, d := l.AllowAtMost(ctx, "user", 300); n != 100 || !d.Allowed {
			t.Errorf("%d tokens, and %+v", n, d)
		}
	})
}

// AllowAtMost of an empty key says when the first token is there, and takes what has come since the last refusal, one step
// of the refill after the other, though it is then known that not all of it is there.
func TestAllowAtMostOfAnEmptyKey(t *testing.T) {
	for _, n := range []int64{1, 5, 10, 1000} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerSecond(10)}, nil)
			l.AllowN(t.Context(), "k", 10)
			for i := range 12 {
				got, d := l.AllowAtMost(t.Context(), "k", n)
				if got != 0 || d.Reason != tiered.Limited || d.RetryAfter > 100*time.Millisecond+time.Microsecond {
					t.Errorf("AllowAtMost(%d) of none: %d, %v, come back in %v; a token is there in 100ms", n, got,
						d.Reason, d.RetryAfter)
				}
				time.Sleep(time.Duration(100*(1+i%3))*time.Millisecond + time.Microsecond)
				left := l.Peek(t.Context(), "k").Remaining
				if got, _ := l.AllowAtMost(t.Context(), "k", n); got != min(left, n) {
					t.Errorf("AllowAtMost(%d) got %d of %d", n, got, left)
				}
				l.AllowAtMost(t.Context(), "k", 10) // what is left
			}
		})
	}
}
