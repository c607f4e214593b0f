package tiered_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A key whose requests carried different limits goes by the one that was carried last, when nobody has carried a larger one
// for ten seconds: also if later requests carry none.
func TestRequestsWithoutALimitGoByTheLastOne(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *tiered.Limiter) tiered.Decision{
		"Allow": func(ctx context.Context, l *tiered.Limiter) tiered.Decision { return l.Allow(ctx, "user") },
		"All": func(ctx context.Context, l *tiered.Limiter) tiered.Decision {
			return tiered.All(l.For("user"), l.For("other")).Allow(ctx)
		},
		"Peek": func(ctx context.Context, l *tiered.Limiter) tiered.Decision { return l.Peek(ctx, "user") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, remote.NewMemory(), tiered.Policy{Name: "api", Limit: tiered.PerMinute(500)}, nil)
				for _, limit := range []tiered.Limit{tiered.PerMinute(1000), tiered.PerMinute(10)} {
					l.For("user").WithLimit(limit).Allow(t.Context())
				}
				for within := range 2 {
					if d := ask(t.Context(), l); within == 0 && d.Burst < 500 || within == 1 && d.Burst != 10 {
						t.Errorf("%d s after requests with 1000 and then 10 a minute: %d of %d remain", 12*within, d.Remaining, d.Burst)
					}
					time.Sleep(12 * time.Second)
				}
			})
		})
	}
}

// A key that was carried as Unlimited or Blocked stays so for requests that carry none, also if requests had carried different
// limits before. (Issue 38; random plan 25990.)
func TestUnlimitedAndBlockedStayCarried(t *testing.T) {
	for _, c := range []struct {
		limit tiered.Limit
		allow bool
	}{{tiered.Unlimited(), true}, {tiered.Blocked(), false}} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{Name: "api", Limit: tiered.PerMinute(500)}, nil)
			for _, limit := range []tiered.Limit{tiered.PerMinute(5), tiered.PerMinute(3), c.limit} {
				l.For("user").WithLimit(limit).Allow(t.Context())
			}
			for range 10 {
				peek, d := l.Peek(t.Context(), "user"), l.Allow(t.Context(), "user")
				if peek.Allowed != c.allow || d.Allowed != c.allow {
					t.Fatalf("carried %v last: Peek says %v, Allow %v", c.limit, peek.Reason, d.Reason)
				}
				time.Sleep(time.Second)
			}
		})
	}
}
