package tiered_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Cancel gives all tokens back, whether they were leased, and whatever was told to Redis since in which block.
func TestCancelGivesBackInALaterBlock(t *testing.T) {
	limits := map[tiered.Algorithm]tiered.Limit{
		tiered.TokenBucket: tiered.PerDay(10_000), tiered.FixedWindow: tiered.PerDay(10_000),
		tiered.SlidingWindow: tiered.PerSecond(10_000), tiered.SlidingLog: tiered.PerSecond(10_000), // blocks of 25 ms
	}
	for a, limit := range limits {
		for _, between := range []int64{0, 1, 300} { // tokens taken before the Cancel
			for _, later := range []time.Duration{0, 60 * time.Millisecond, 400 * time.Millisecond} {
				t.Run(fmt.Sprint(a, " ", between, " ", later), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						l := limiter(t, remote.NewMemory(), tiered.Policy{Name: "api", Limit: limit, Algorithm: a}, nil)
						time.Sleep(4 * time.Second)
						l.AllowN(t.Context(), "user", 2500)
						time.Sleep(60 * time.Millisecond)
						r := l.ReserveN(t.Context(), "user", 100)
						time.Sleep(later / 2)
						for range between {
							if !l.Allow(t.Context(), "user").Allowed {
								t.Fatal("refused")
							}
							time.Sleep(100 * time.Microsecond)
						}
						time.Sleep(later / 2)
						r.Cancel()
						time.Sleep(60 * time.Millisecond)
						if d := l.Peek(t.Context(), "user"); d.Remaining < 7500-between {
							t.Errorf("%d of 10000 are used, 100 were reserved and canceled, and %d remain", 2500+between, d.Remaining)
						}
					})
				})
			}
		}
	}
}
