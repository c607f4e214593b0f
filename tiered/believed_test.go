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
	for _, a := range []tiered.Algorithm{tiered.TokenBucket, tiered.FixedWindow, tiered.SlidingWindow, tiered.SlidingLog} {
		for _, random := range []float64{0, 0.5, 0.999999} {
			for _, per := range []time.Duration{4900 * time.Millisecond, time.Hour} { // of a token
				synctest.Test(t, func(t *testing.T) {
					store, ctx := remote.NewMemory(), context.Background()
					of := func() *tiered.Limiter {
						l := limiter(t, store, tiered.Policy{Name: "api", Algorithm: a, Limit: tiered.Per(1, per)}, &tiered.Options{
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
					if err := other.Reset(ctx, "ann"); err != nil {
						t.Fatal(err)
					}
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
