package tiered_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A refusal is believed for 5 s at most, whatever the random numbers and whenever the tokens are due: then a process sees
// what others gave to the key.
func TestARefusalIsBelievedFor5Seconds(t *testing.T) {
	for _, a := range algorithms {
		for _, random := range []float64{0, 0.5, 0.999999} {
			for _, per := range []time.Duration{4900 * time.Millisecond, time.Hour} { // of a token
				synctest.Test(t, func(t *testing.T) {
					store, ctx := remote.NewMemory(), context.Background()
					of := func() *tiered.Limiter {
						l := limiter(t, store, tiered.Policy{Algorithm: a, Limit: tiered.Per(1, per)}, &tiered.Options{
							Logger: slog.New(slog.DiscardHandler), Random: func() float64 { return random },
						})
						return l
					}
					l, other := of(), of()
					time.Sleep(time.Second)
					l.Allow(ctx, "ann")
					l.Allow(ctx, "ann")
					if d := l.Allow(ctx, "ann"); d.Allowed || d.Tier != tiered.Local {
						t.Fatalf("%+v, want a refusal that is known", d)
					}
					start := time.Now()
					ok(t, other.Reset(ctx, "ann"))
					for !l.Allow(ctx, "ann").Allowed {
						time.Sleep(10 * time.Millisecond)
					}
					if took := time.Since(start); took > 5010*time.Millisecond {
						t.Errorf("%v, %v, random %v: a reset is seen after %v", a, per, random, took)
					}
				})
			}
		}
	}
}

// Who has time is decided by Redis, also if the call under way is for callers in a hurry and comes too late for them. (Issue 38.)
func TestWhoHasTimeDoesNotGoByCallersInAHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(12*ms), tiered.Policy{
			Limit: tiered.PerSecond(1000), Lease: neverLeased, FailMode: tiered.FailClosed,
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
