package tiered_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Reset forgives what was used, also by leases of other processes that are over.
func TestResetForgivesWhatOthersLeased(t *testing.T) {
	for _, a := range []tiered.Algorithm{tiered.TokenBucket, tiered.FixedWindow, tiered.SlidingWindow, tiered.SlidingLog} {
		for _, later := range []time.Duration{1500 * time.Millisecond, time.Hour} {
			t.Run(fmt.Sprint(a, " ", later), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := remote.NewMemory()
					var all []*tiered.Limiter
					for range 3 {
						l := limiter(t, s, tiered.Policy{Name: "api", Limit: tiered.PerDay(100), Algorithm: a}, nil)
						all = append(all, l)
					}
					time.Sleep(4 * time.Second)
					var crowd sync.WaitGroup
					for i := range 30 {
						crowd.Go(func() { all[i%3].Allow(t.Context(), "user") })
					}
					crowd.Wait()
					time.Sleep(later)
					if err := all[2].Reset(t.Context(), "user"); err != nil {
						t.Fatal(err)
					}
					if d := all[2].Peek(t.Context(), "user"); d.Remaining < d.Burst {
						t.Errorf("%v after the last request, after Reset, %d of %d remain", later, d.Remaining, d.Burst)
					}
				})
			})
		}
	}
}
