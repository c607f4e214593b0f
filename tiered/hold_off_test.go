package tiered_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// What a process gives back it can use again 5 s later, however long its leases last. (Issue 38; random plan 15841.)
func TestLongLeasesSeeWhatComesBack(t *testing.T) {
	for _, a := range []tiered.Algorithm{tiered.TokenBucket, tiered.FixedWindow, tiered.SlidingWindow} {
		t.Run(a.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := remote.NewMemory()
				p := tiered.Policy{
					Name: "api", Algorithm: a, Limit: tiered.PerDay(100), Lease: tiered.Lease{Period: time.Minute},
				}
				var ls [2]*tiered.Limiter
				for i := range ls {
					l := limiter(t, store, p, nil)
					ls[i] = l
				}
				time.Sleep(4 * time.Second)
				r := ls[0].ReserveN(t.Context(), "user", 25)
				for ls[1].Allow(t.Context(), "user").Allowed {
				}
				time.Sleep(30 * time.Second)
				if d := ls[0].Allow(t.Context(), "user"); !r.Allowed || d.Allowed {
					t.Fatalf("%+v %+v", r.Decision, d)
				}
				time.Sleep(time.Second)
				r.Cancel()
				time.Sleep(6 * time.Second)
				if d := ls[0].AllowN(t.Context(), "user", 25); !d.Allowed {
					t.Errorf("25 came back, and then: %v, %d remain, again after %v", d.Reason, d.Remaining, d.RetryAfter)
				}
			})
		})
	}
}
