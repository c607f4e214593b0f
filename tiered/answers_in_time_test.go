package tiered_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// frozen is a store that never answers.
func frozen() *distant {
	s := newDistant(0)
	s.loseRequests.Store(true)
	return s
}

// A caller that has a deadline gets its answer before it: the fail mode decides in time if Redis does not answer.
func TestAnswerComesBeforeTheCallersDeadline(t *testing.T) {
	ask := map[string]func(context.Context, *tiered.Limiter) (tiered.Decision, error){
		"Allow": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) { return l.Allow(ctx, "k"), nil },
		"Reserve": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) {
			return l.ReserveN(ctx, "k", 2).Decision, nil
		},
		"All": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) {
			return tiered.All(l.For("k"), l.For("j")).Allow(ctx), nil
		},
		"AllowSeparately": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) {
			var each [2]tiered.Decision
			tiered.All(l.For("k"), l.For("j")).AllowSeparately(ctx, each[:])
			return each[1], nil
		},
		"AllowAtMost": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) {
			_, d := l.AllowAtMost(ctx, "k", 3)
			return d, nil
		},
		"Peek": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) { return l.Peek(ctx, "k"), nil },
		"Reset": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) {
			return tiered.Decision{}, l.Reset(ctx, "k")
		},
		"Refund": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) {
			return tiered.Decision{}, l.Refund(ctx, "k", 1)
		},
		"PeekEach": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) {
			_, err := l.PeekEach(ctx, "k")
			return tiered.Decision{}, err
		},
	}
	for name, f := range ask {
		for _, left := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				l := must(tiered.New(frozen(), tiered.Policy{
					Name: "p", Limit: tiered.PerSecond(100), FailMode: tiered.FailClosed,
				}, nil))
				ctx, cancel := context.WithTimeout(t.Context(), left)
				defer cancel()
				start := time.Now()
				d, err := f(ctx, l)
				took, late := time.Since(start), ctx.Err() != nil
				switch {
				case late || left-took < min(left/2, 10*time.Millisecond): // an answer takes some time to its caller
					t.Errorf("%s: answered %v after it was asked, with %v left", name, took, left)
				case err == nil && d.Reason != tiered.Unavailable, err != nil && !errors.Is(err, tiered.ErrUnavailable):
					t.Errorf("%s, %v left: %v, %v, want the fail mode to decide", name, left, d.Reason, err)
				}
				_ = l.Close(context.Background())
			})
		}
	}
}

// Who waits for tokens waits until its deadline, whatever Redis does.
func TestWaitEndsWithItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := must(tiered.New(frozen(), tiered.Policy{
			Name: "p", Limit: tiered.PerSecond(100), FailMode: tiered.FailClosed,
		}, nil))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		start := time.Now()
		if err := l.Wait(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 10*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		_ = l.Close(context.Background())
	})
}
