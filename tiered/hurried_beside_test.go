package tiered_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// steadyStore is a Memory at a fixed distance. Its clock is right, so a call whose deadline is over does nothing.
type steadyStore struct {
	*remote.Memory
	way time.Duration
}

func (s steadyStore) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	time.Sleep(s.way)
	s.Memory.Run(ctx, timeout, calls, results)
	time.Sleep(s.way)
}

// Who has time is decided by Redis, also if the call under way is for callers in a hurry and comes too late for them. (Issue 38.)
func TestWhoHasTimeDoesNotGoByCallersInAHurry(t *testing.T) {
	const ms = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, steadyStore{remote.NewMemory(), 6 * ms}, tiered.Policy{
			Name: "api", Limit: tiered.PerSecond(1000), Lease: tiered.Lease{Size: tiered.NoLease}, FailMode: tiered.FailClosed,
		}, &tiered.Options{Budget: 100 * ms})
		for range 20 { // the process knows how far Redis is
			time.Sleep(100 * ms)
			l.Allow(t.Context(), "k")
		}
		hurry := func() tiered.Decision {
			ctx, cancel := context.WithTimeout(t.Context(), 8*ms) // it waits for half of that
			defer cancel()
			return l.Allow(ctx, "k")
		}
		for join := ms / 2; join < 24*ms; join += ms { // when the caller comes who has time
			go hurry()
			go func() { time.Sleep(10 * ms); hurry() }() // it still waits when the first call turns out to be late
			time.Sleep(join)
			if d := l.Allow(t.Context(), "k"); d.Reason != tiered.Granted {
				t.Errorf("who came after %v, and waits for 100 ms: %v", join, d.Reason)
			}
			time.Sleep(200 * ms)
		}
	})
}
