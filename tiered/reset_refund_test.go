package tiered_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// What a Reset has forgiven does not come back once more when its request is canceled, in place of what others took since.
func TestCancelAfterResetGivesBackNothing(t *testing.T) {
	for _, a := range []tiered.Algorithm{tiered.FixedWindow, tiered.SlidingWindow, tiered.SlidingLog} {
		t.Run(fmt.Sprint(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := remote.NewMemory()
				var all []*tiered.Limiter
				for range 2 {
					l := limiter(t, s, tiered.Policy{
						Name: "api", Limit: tiered.PerHour(10), Algorithm: a, Calendar: a == tiered.FixedWindow,
					}, nil)
					all = append(all, l)
				}
				time.Sleep(4 * time.Second)
				forgiven := all[0].ReserveN(t.Context(), "user", 4)
				time.Sleep(time.Second)
				if err := all[1].Reset(t.Context(), "user"); err != nil {
					t.Fatal(err)
				}
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
		})
	}
}
