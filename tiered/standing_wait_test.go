package tiered_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Callers who wait for a key are served in time with standing shares as without: the estimate for those behind the first
// knows that the share has an eighth of the rate.
func TestWaitersBesideStandingShares(t *testing.T) {
	for _, standing := range []tiered.Standing{tiered.StandingOff, tiered.StandingOn} {
		bubble(t, standing.String(), func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerMinute(800), Standing: standing}, nil)
			time.Sleep(5 * time.Minute)
			for l.Allow(t.Context(), "user").Allowed {
			}
			var served, late atomic.Int64
			var all sync.WaitGroup
			for range 750 + 100 { // 800 tokens come in a minute: the last callers are too many
				all.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					var e *tiered.LimitedError
					switch err := l.Wait(ctx, "user"); {
					case err == nil:
						served.Add(1)
					case errors.As(err, &e):
						late.Add(1)
					}
				})
				time.Sleep(time.Millisecond)
			}
			all.Wait()
			if served.Load() < 790 || late.Load() < 30 {
				t.Errorf("%d of 850 served, %d refused before their time was over", served.Load(), late.Load())
			}
		})
	}
}
