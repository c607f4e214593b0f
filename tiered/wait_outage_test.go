package tiered_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// silence cuts Redis off until the breaker is open, at the cost of requests of a key of their own.
func silence(t *testing.T, store *distant, l *tiered.Limiter) {
	t.Helper()
	store.loseRequests.Store(true)
	for i := 0; l.Group().Stats().Nodes["memory"].Outages.Breaker != "open"; i++ {
		if i > 100 {
			t.Fatal("the breaker stays closed")
		}
		l.Allow(context.Background(), "silence")
		time.Sleep(100 * ms)
	}
}

func TestWaitDuringAnOutage(t *testing.T) {
	wait := func(t *testing.T, l *tiered.Limiter, key string, n int64) (time.Duration, error) {
		start := time.Now()
		err := l.WaitN(t.Context(), key, n)
		return time.Since(start), err
	}
	t.Run("fail-closed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newDistant(ms)
			l := limiter(t, store, tiered.Policy{Name: "api", Limit: tiered.PerSecond(10), FailMode: tiered.FailClosed},
				nil)
			store.loseRequests.Store(true)
			if d, err := wait(t, l, "k", 1); d > tiered.DefaultBudget || !errors.Is(err, tiered.ErrUnavailable) {
				t.Errorf("nobody knows yet: %v after %v, want the budget at most", err, d)
			}
			silence(t, store, l)
			var limited *tiered.LimitedError
			if d, err := wait(t, l, "k", 1); d != 0 || !errors.As(err, &limited) ||
				limited.Decision.Reason != tiered.Unavailable {
				t.Errorf("%v after %v, want to be refused at once", err, d)
			}
			store.loseRequests.Store(false)
			noTurns(t, l.Group())
		})
	})
	t.Run("fail-local", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newDistant(ms)
			l := limiter(t, store, tiered.Policy{Name: "api", Limit: tiered.PerSecond(10)}, &tiered.Options{Processes: 2})
			silence(t, store, l)
			q := &queue{t: t, l: l} // the share is 5, and 5 per second
			start := tiered.Engine(l.Group()).Now()
			for i := range 15 {
				q.join(t.Context(), i, "k", 1)
			}
			q.all.Wait()
			q.granted()
			for i, w := range q.ended() {
				if d := w.at - start - time.Duration(max(i-4, 0))*200*ms; d < 0 || d > ms {
					t.Errorf("number %d went after %v", i, w.at-start)
				}
			}
			if s := l.Group().Stats().Policies["api"]; s.Tokens.Fallback < 15 {
				t.Errorf("%+v: this shows nothing", s)
			}
			var limited *tiered.LimitedError
			if d, err := wait(t, l, "k", 6); d != 0 || !errors.As(err, &limited) ||
				limited.Decision.Reason != tiered.FallbackSpent {
				t.Errorf("more than the share's burst: %v after %v, want to be refused at once", err, d)
			}
			store.loseRequests.Store(false)
		})
	})
	t.Run("fail-open", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newDistant(ms)
			l := limiter(t, store, tiered.Policy{Name: "api", Limit: tiered.PerSecond(10), FailMode: tiered.FailOpen}, nil)
			silence(t, store, l)
			for range 50 {
				if d, err := wait(t, l, "k", 10); d != 0 || err != nil {
					t.Fatalf("%v after %v", err, d)
				}
			}
			store.loseRequests.Store(false)
		})
	})
}

// A waiter whose share brings a token in 100 s slept through the end of the outage, and so did all behind it.
func TestWaitNoticesTheEndOfAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Name: "api", Limit: tiered.PerMinute(6)}, &tiered.Options{Processes: 10})
		silence(t, store, l)
		if d := l.Allow(t.Context(), "k"); d.Reason != tiered.Fallback {
			t.Fatalf("%+v", d)
		}
		q := &queue{t: t, l: l}
		for i := range 3 {
			q.join(t.Context(), i, "k", 1)
		}
		time.Sleep(5 * time.Second)
		if done := q.ended(); len(done) > 0 {
			t.Fatalf("%v: this shows nothing", done)
		}
		store.loseRequests.Store(false)
		start := time.Now()
		q.all.Wait()
		q.granted()
		// A probe that just failed, an open time of 1 s at most, a look that is the probe, and the look after it.
		if d := time.Since(start); d > 3*time.Second+100*ms {
			t.Errorf("waited %v after the end of the outage for tokens that were there", d)
		}
	})
}

// Tokens that another process returns, and a Reset, are noticed within about 5 s, by waiters and by other requests.
func TestWaitNoticesTokensThatCameBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		a := limiter(t, store, tiered.Policy{Name: "api", Limit: tiered.PerDay(10)}, nil)
		b := limiter(t, store, tiered.Policy{Name: "api", Limit: tiered.PerDay(10)}, nil)
		r := a.ReserveN(t.Context(), "k", 10)
		want(t, r.Decision, tiered.Granted)
		q := &queue{t: t, l: b}
		for i := range 3 {
			q.join(t.Context(), i, "k", 1)
		}
		time.Sleep(10 * time.Second)
		if len(q.ended()) > 0 {
			t.Fatal(q.ended())
		}
		start := time.Now()
		r.Cancel()
		q.all.Wait()
		q.granted()
		if d := time.Since(start); d > 5500*ms+10*ms {
			t.Errorf("waited %v for tokens that were there", d)
		}
	})
}
