package tiered_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A leased fixed window continues after the store's clock was set back. Its leases keep the time that they had
// left, and do not last until the clock reaches their old end.
func TestFixedWindowGoesOnAfterAStepBack(t *testing.T) {
	for _, step := range []time.Duration{2 * second, time.Minute, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			store := newDistant(ms)
			p := tiered.Policy{
				Name: "api", Limit: tiered.PerMinute(1000), Algorithm: tiered.FixedWindow,
				FailMode: tiered.FailClosed,
			}
			l := limiter(t, store, p, nil)
			ask := func(d time.Duration) (admitted int) {
				for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * ms) {
					if l.Allow(t.Context(), "k").Allowed {
						admitted++
					}
				}
				return admitted
			}
			if n := ask(10 * second); n < 900 {
				t.Fatalf("%d admitted before the clock was set", n)
			}
			store.Memory.Step(-step)
			if n := ask(5 * time.Minute); n < 4500 || n > 6000 {
				t.Errorf("%v back: %d admitted in 5 minutes of 1000 per minute", step, n)
			}
		})
	}
}

// A fixed window that may be over when a reply comes is taken directly. It is served also while a debt is unreported.
func TestBriefFixedWindowIsServed(t *testing.T) {
	for _, per := range []time.Duration{time.Microsecond, ms, 99 * ms} {
		for _, mode := range []tiered.FailMode{tiered.FailOpen, tiered.FailLocal, tiered.FailClosed} {
			synctest.Test(t, func(t *testing.T) {
				limit := tiered.Limit{Tokens: 1000, Per: per}
				l := limiter(t, newDistant(2*ms), tiered.Policy{
					Name: "api", Limit: limit, Algorithm: tiered.FixedWindow,
					FailMode: mode,
				}, nil)
				for range 200 {
					r := l.ReserveN(context.Background(), "k", 2)
					if r.Tier == tiered.Failover || !r.Allowed {
						t.Fatalf("%v: %+v", per, r.Decision)
					}
					r.Settle(1, 1)
					time.Sleep(ms)
				}
			})
		}
	}
}
