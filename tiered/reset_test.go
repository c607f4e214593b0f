package tiered_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Reset forgives what was used, also by leases of other processes that are over.
func TestResetForgivesWhatOthersLeased(t *testing.T) {
	for _, a := range algorithms {
		for _, later := range []time.Duration{1500 * time.Millisecond, time.Hour} {
			bubble(t, fmt.Sprint(a, " ", later), func(t *testing.T) {
				s := remote.NewMemory()
				var all []*tiered.Limiter
				for range 3 {
					l := limiter(t, s, tiered.Policy{Limit: tiered.PerDay(100), Algorithm: a}, nil)
					all = append(all, l)
				}
				time.Sleep(4 * time.Second)
				var crowd sync.WaitGroup
				for i := range 30 {
					crowd.Go(func() { all[i%3].Allow(t.Context(), "user") })
				}
				crowd.Wait()
				time.Sleep(later)
				ok(t, all[2].Reset(t.Context(), "user"))
				if d := all[2].Peek(t.Context(), "user"); d.Remaining < d.Burst {
					t.Errorf("%v after the last request, after Reset, %d of %d remain", later, d.Remaining, d.Burst)
				}
			})
		}
	}
}

// What a Reset has forgiven does not come back once more when its request is canceled, in place of what others took since.
func TestCancelAfterResetGivesBackNothing(t *testing.T) {
	for _, a := range []tiered.Algorithm{tiered.FixedWindow, tiered.SlidingWindow, tiered.SlidingLog} {
		bubble(t, fmt.Sprint(a), func(t *testing.T) {
			s := remote.NewMemory()
			var all []*tiered.Limiter
			for range 2 {
				l := limiter(t, s, tiered.Policy{
					Limit: tiered.PerHour(10), Algorithm: a, Calendar: a == tiered.FixedWindow,
				}, nil)
				all = append(all, l)
			}
			time.Sleep(4 * time.Second)
			forgiven := all[0].ReserveN(t.Context(), "user", 4)
			time.Sleep(time.Second)
			ok(t, all[1].Reset(t.Context(), "user"))
			admitted := func() (n int) {
				for all[1].Allow(t.Context(), "user").Allowed {
					n++
				}
				return n
			}
			time.Sleep(time.Second)
			before := admitted()
			forgiven.Cancel()
			time.Sleep(6 * time.Second) // Redis hears of it, and no refusal is believed any more
			if after := admitted(); before != 10 || after != 0 {
				t.Errorf("%d and then %d of 10 an hour were admitted after the Reset", before, after)
			}
		})
	}
}
