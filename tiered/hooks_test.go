package tiered_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// teller calls a function for each line that is logged.
type teller func()

func (teller) Enabled(context.Context, slog.Level) bool    { return true }
func (f teller) Handle(context.Context, slog.Record) error { f(); return nil }
func (f teller) WithAttrs([]slog.Attr) slog.Handler        { return f }
func (f teller) WithGroup(string) slog.Handler             { return f }
func loggedBy(f func()) *slog.Logger                       { return slog.New(teller(f)) }

// A hook or a Logger that calls Close waits for itself, until its context ends: see Close. It does no other harm: leases are
// returned, and another Close ends.
func TestHookThatCloses(t *testing.T) {
	for name, options := range map[string]func(closing func()) *tiered.Options{
		"hook": func(closing func()) *tiered.Options {
			return &tiered.Options{Trace: &tiered.Trace{Decision: func(tiered.Decision) { closing() }}}
		},
		"logger": func(closing func()) *tiered.Options { return &tiered.Options{Logger: loggedBy(closing)} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l *tiered.Limiter
				all := make(chan error, 1000)
				p := tiered.Policy{
					Name: "api", Limit: tiered.PerSecond(1000),
					PerKey: func(string) tiered.Limit { panic("no") },
				} // which is logged
				store := newDistant(ms)
				l = limiter(t, store, p, options(func() {
					ctx, cancel := context.WithTimeout(context.Background(), 10*second)
					defer cancel()
					all <- l.Close(ctx)
				}))
				time.Sleep(10 * ms)
				l.Allow(t.Context(), "k")
				if err := <-all; !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Close: %v", err)
				}
				closeIn(t, l, second)
			})
		})
	}
}

// A hook that asks a Limiter causes events for ever. No decision waits for it, and Close ends it.
func TestHookThatFeedsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *tiered.Limiter
		var calls atomic.Int64
		l = limiter(t, newDistant(ms), tiered.Policy{Name: "api", Limit: tiered.PerSecond(1000)},
			&tiered.Options{Trace: &tiered.Trace{Decision: func(tiered.Decision) {
				time.Sleep(ms)
				calls.Add(1)
				l.Allow(context.Background(), "log")
			}}})
		l.Allow(t.Context(), "k")
		time.Sleep(second)
		start := time.Now()
		if d := l.Allow(t.Context(), "k"); !d.Allowed || time.Since(start) > 2*ms || calls.Load() < 100 {
			t.Errorf("%v after %v, beside a hook that was called %d times", d, time.Since(start), calls.Load())
		}
		closeIn(t, l, 5*second)
	})
}
