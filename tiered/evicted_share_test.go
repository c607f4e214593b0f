package tiered_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A key that MaxKeys pushes out in an outage comes back with what was left of its share, however many other keys a
// client names. A key that nobody used has a full share.
func TestEvictedKeyHasNoNewShare(t *testing.T) {
	for _, maxKeys := range []int{10, 1000} {
		for _, algorithm := range []tiered.Algorithm{tiered.TokenBucket, tiered.FixedWindow, tiered.SlidingLog} {
			t.Run(fmt.Sprint(algorithm, " ", maxKeys), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := remote.NewMemory()
					l := limiter(t, s, tiered.Policy{Name: "api", Limit: tiered.PerHour(100), Algorithm: algorithm},
						&tiered.Options{MaxKeys: maxKeys, Processes: 1, Logger: slog.New(slog.DiscardHandler)})
					time.Sleep(4 * time.Second)
					s.Fail(io.EOF)
					time.Sleep(5 * time.Second)
					useUp := func(key string) (admitted int) {
						for l.Allow(t.Context(), key).Allowed {
							admitted++
						}
						return admitted
					}
					admitted, start := 0, time.Now()
					for round := range 20 {
						admitted += useUp("user")
						for i := range 3 * maxKeys {
							l.Allow(t.Context(), fmt.Sprint("other ", round, " ", i))
						}
						time.Sleep(100 * time.Millisecond)
					}
					if admitted > 101 || admitted < 99 {
						t.Errorf("%d admitted in %v of an outage by a share of 100 per hour", admitted, time.Since(start))
					}
					full := 0 // most are: some meet an evicted key in a place of the table
					for i := range 21 {
						if useUp(fmt.Sprint("somebody else ", i)) >= 98 {
							full++
						}
					}
					if full < 11 {
						t.Errorf("%d of 21 keys that nobody used have a full share", full)
					}
					time.Sleep(30 * time.Minute) // half of it is refilled
					for i := range 3 * maxKeys {
						l.Allow(t.Context(), fmt.Sprint("another ", i))
					}
					if n := useUp("user"); n < 48 || n > 51 {
						t.Errorf("after half an hour the key has a share of %d", n)
					}
				})
			})
		}
	}
}

// A policy that is removed and comes back in an outage does not have full shares again.
func TestShareOutlivesItsPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := remote.NewMemory()
		g, err := tiered.NewGroup(s, &tiered.Options{Processes: 1, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = g.Close(context.Background()) }()
		policies := []tiered.Policy{{Name: "api", Limit: tiered.PerHour(100), FailMode: tiered.FailLocal}}
		s.Fail(io.EOF)
		admitted := 0
		for _, all := range [][]tiered.Policy{policies, nil, policies} {
			if err := g.SetPolicies(all); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			if l, ok := g.Limiter("api"); ok {
				for l.Allow(t.Context(), "user").Allowed {
					admitted++
				}
			}
		}
		if admitted > 101 || admitted < 99 {
			t.Errorf("%d admitted by a share of 100 per hour", admitted)
		}
	})
}
