package tiered_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// asks are all ways to ask Redis, and the error that each comes to.
var asks = map[string]func(context.Context, *tiered.Limiter) error{
	"Allow":   func(ctx context.Context, l *tiered.Limiter) error { return l.Allow(ctx, "k").Err() },
	"Reserve": func(ctx context.Context, l *tiered.Limiter) error { return l.ReserveN(ctx, "k", 2).Err() },
	"All": func(ctx context.Context, l *tiered.Limiter) error {
		return tiered.All(l.For("k"), l.For("j")).Allow(ctx).Err()
	},
	"AllowSeparately": func(ctx context.Context, l *tiered.Limiter) error {
		var each [2]tiered.Decision
		tiered.All(l.For("k"), l.For("j")).AllowSeparately(ctx, each[:])
		return each[1].Err()
	},
	"AllowAtMost": func(ctx context.Context, l *tiered.Limiter) error { _, d := l.AllowAtMost(ctx, "k", 3); return d.Err() },
	"Peek":        func(ctx context.Context, l *tiered.Limiter) error { return l.Peek(ctx, "k").Err() },
	"PeekEach":    func(ctx context.Context, l *tiered.Limiter) error { _, err := l.PeekEach(ctx, "k"); return err },
	"Reset":       func(ctx context.Context, l *tiered.Limiter) error { return l.Reset(ctx, "k") },
	"Refund":      func(ctx context.Context, l *tiered.Limiter) error { return l.Refund(ctx, "k", 1) },
}

// A caller that has a deadline gets its answer before it: the fail mode decides in time if Redis
// does not answer. Who waits for tokens waits until the deadline.
func TestAnswerComesBeforeTheCallersDeadline(t *testing.T) {
	for name, ask := range asks {
		for _, left := range []time.Duration{ms, 5 * ms, 10 * ms, 20 * ms} {
			synctest.Test(t, func(t *testing.T) {
				store := newDistant(0)
				store.loseRequests.Store(true) // it never answers
				l := must(tiered.New(store, tiered.Policy{Name: "p", Limit: tiered.PerSecond(100), FailMode: tiered.FailClosed}, nil))
				short, cancel := context.WithTimeout(ctx, left)
				defer cancel()
				start := time.Now()
				err := ask(short, l)
				if took := time.Since(start); short.Err() != nil || left-took < min(left/2, 10*ms) { // it takes some time to its caller
					t.Errorf("%s: answered %v after it was asked, with %v left", name, took, left)
				}
				if !errors.Is(err, tiered.ErrUnavailable) {
					t.Errorf("%s, %v left: %v, want the fail mode to decide", name, left, err)
				}
				if err := l.Wait(short, "k"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != left {
					t.Errorf("Wait: %v after %v", err, time.Since(start))
				}
				_ = l.Close(ctx)
			})
		}
	}
}

// Who has time is decided by Redis, also if the call under way is for callers in a hurry and comes
// too late for them. (Issue 38.)
func TestWhoHasTimeDoesNotGoByCallersInAHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(12*ms), tiered.Policy{
			Limit: tiered.PerSecond(1000), Lease: neverLeased, FailMode: tiered.FailClosed,
		}, &tiered.Options{Budget: 100 * ms})
		for range 20 { // the process knows how far Redis is
			time.Sleep(100 * ms)
			l.Allow(t.Context(), "k")
		}
		hurry := func() tiered.Decision {
			ctx, cancel := context.WithTimeout(t.Context(), 8*ms) // it waits for half of that
			defer cancel()
			return l.Allow(ctx, "k")
		}
		for join := ms / 2; join < 24*ms; join += ms { // when the caller comes who has time
			go hurry()
			go func() { time.Sleep(10 * ms); hurry() }() // it still waits when the first call turns out to be late
			time.Sleep(join)
			if d := l.Allow(t.Context(), "k"); d.Reason != tiered.Granted {
				t.Errorf("who came after %v, and waits for 100 ms: %v", join, d.Reason)
			}
			time.Sleep(200 * ms)
		}
	})
}

// The error of a request whose context ended is the context's own: canceled or deadline exceeded.
func TestContextThatEnds(t *testing.T) {
	for _, c := range []struct {
		within    time.Duration // until the deadline; 0 for none
		cancel    bool          // after a millisecond
		is, other error
	}{
		{-1, false, context.DeadlineExceeded, context.Canceled},
		{0, true, context.Canceled, context.DeadlineExceeded},
		{second, true, context.Canceled, context.DeadlineExceeded},
	} {
		for name, ask := range asks {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, newDistant(10*ms), direct("api", 10), nil)
				time.Sleep(second)
				ends, cancel := context.WithCancel(ctx)
				defer cancel()
				if c.within != 0 {
					ends, cancel = context.WithTimeoutCause(ends, c.within, errors.New("nobody is there any more"))
					defer cancel()
				}
				if c.cancel {
					time.AfterFunc(ms, cancel)
				}
				err := ask(ends, l)
				var refused *tiered.LimitedError
				if errors.As(err, &refused) && refused.Decision.Reason != tiered.Canceled || !errors.Is(err, c.is) || errors.Is(err, c.other) {
					t.Errorf("%s: %v, want %v", name, err, c.is)
				}
			})
		}
	}
}
