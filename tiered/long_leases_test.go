package tiered_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// cut is a store that one process does not reach while it is away.
type cut struct {
	*remote.Memory
	away atomic.Bool
}

func (c *cut) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	if c.away.Load() {
		frozen{c.Memory}.Run(ctx, timeout, calls, results)
		return
	}
	c.Memory.Run(ctx, timeout, calls, results)
}

// A key is full only when what its last lease held has been refilled, counted from the end of that lease: until then the
// process may spend it.
func TestLongLeasesKeepTheLimit(t *testing.T) {
	for name, also := range map[string][]tiered.Limit{"one limit": nil, "two limits": {tiered.PerHour(72_000)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &cut{Memory: remote.NewMemory()}
				p := tiered.Policy{
					Name: "api", Limit: tiered.PerMinute(600), Also: also, FailMode: tiered.FailClosed,
					Lease: tiered.Lease{Size: 150, Period: 10 * time.Second}, // it lives for 40 s
				}
				var all []*tiered.Limiter
				for _, s := range []remote.Store{store, store.Memory} {
					l := limiter(t, s, p, nil)
					all = append(all, l)
				}
				time.Sleep(4 * time.Second)
				held, before := int64(0), int64(0)
				for i := 0; i < 200 || held <= before || held < 100; i++ { // until it has just leased
					all[0].Allow(t.Context(), "user")
					time.Sleep(125 * time.Millisecond)
					before, held = held, all[0].Group().Stats().Policies["api"].Leases.Held
				}
				store.away.Store(true)
				time.Sleep(42 * time.Second) // its lease is over for at most 2 s
				admitted := int64(0)
				for all[1].Allow(t.Context(), "user").Allowed {
					admitted++
				}
				if most := 600 - held + 2*10 + 1; admitted > most { // and the one that asked for the lease
					t.Errorf("%d of 600 were admitted when a lease of %d was over, want at most %d", admitted, held, most)
				}
			})
		})
	}
}
