package sim_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

// A new connection takes as many round trips here as with go-redis: one to dial, two for what
// go-redis says first, and two for the call, which Redis does not know the first time. What a
// broken network can lose of it is counted by that.
func TestNewConnection(t *testing.T) {
	const trip = 10 * time.Millisecond
	for name, open := range map[string]func(t *testing.T) remote.Store{
		"simulated": func(*testing.T) remote.Store {
			return sim.NewStore(trip)
		},
		"go-redis": func(t *testing.T) remote.Store {
			m := miniredis.NewMiniRedis() // over pipes, so that it may run in a bubble
			first, err := m.Dial()        // the first connection starts it
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = first.Close(); m.Close() })
			wire := faultnet.New(1)
			fatal.If(t, wire.Set(faultnet.Faults{Delay: trip / 2}))
			dial := func(context.Context, string, string) (net.Conn, error) { return m.Dial() }
			client := redis.NewClient(&redis.Options{ // what remote.Open sets and makes round trips
				MaxRetries: -1, PipelinePoolSize: -1, ContextTimeoutEnabled: true,
				MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
				Dialer:                   wire.Dialer(dial),
			})
			t.Cleanup(func() { _ = client.Close() })
			return remote.NewRedis(client, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := open(t)
				call := []lua.Call{{
					Bucket: store.Key("p", "k"), Cap: 10, Tokens: 10, Period: 1e6, Want: 1, Min: 1, TTL: 1e6, Fleet: 1,
				}}
				for _, trips := range []int{1 + 2 + 2, 1} {
					want := time.Duration(trips) * trip
					results, start := make([]remote.Result, 1), time.Now()
					store.Run(t.Context(), time.Second, call, results)
					if took := time.Since(start); results[0].Err != nil || took.Round(time.Millisecond) != want {
						t.Errorf("%v, after %v, want %v", results[0].Err, took, want)
					}
				}
				fatal.If(t, store.Close())
			})
		})
	}
}
