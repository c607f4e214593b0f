package tiered

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
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
		if s := l.group.Stats().Policies["api"]; s.GaveUp != 1 || s.Requests.Canceled != 0 {
			t.Errorf("%d gave up, %+v", s.GaveUp, s.Requests)
		}
	})
}

// A key in debt is told when to come back, and full later than that, also by a limit that the request carries.
func TestCarriedLimitIsResetAfterARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(ms), Policy{Name: "api", Limit: PerMinute(10).WithBurst(20)}, nil)
		if err := l.Charge("k", 60); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * ms) // Redis has heard of it
		d := l.ForN("k", 2).WithLimit(Per(3, 10*time.Second)).Allow(t.Context())
		if want(t, d, Limited); d.ResetAfter < d.RetryAfter {
			t.Errorf("retry after %v, reset after %v", d.RetryAfter, d.ResetAfter)
		}
	})
}

// Peek takes no longer than Budget, also if its key is evicted meanwhile.
func TestPeekOfAnEvictedKeyTakesABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, direct("api", 5), &Options{MaxKeys: 1})
		want(t, l.Allow(t.Context(), "k"), Granted)
		store.loseRequests.Store(true)
		time.AfterFunc(DefaultBudget/2, func() { l.Allow(context.Background(), "other") })
		begin := time.Now()
		l.Peek(t.Context(), "k")
		if d := time.Since(begin); d > DefaultBudget {
			t.Errorf("Peek took %v", d)
		}
		store.loseRequests.Store(false)
	})
}
