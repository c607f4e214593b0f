package tiered_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// process is one of a fleet.
type process struct {
	*tiered.Limiter
	wire *distant
}

func startProcess(t *testing.T, m *remote.Memory) process {
	t.Helper()
	p := process{wire: &distant{Memory: m}}
	l := must(tiered.New(p.wire, tiered.Policy{Name: "api", Limit: tiered.PerSecond(100)}, nil))
	p.Limiter = l
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = l.Close(ctx)
	})
	return p
}

// present counts the processes that a store knows, with a visitor that leaves again.
func present(t *testing.T, m *remote.Memory) int64 {
	t.Helper()
	c := must(m.Presence(ctx, 0, m.Node(""), remote.Process{ID: "visitor", TTL: dispatch.PresenceTTL}))
	if _, err := m.Presence(ctx, 0, m.Node(""), remote.Process{ID: "visitor", TTL: 0}); err != nil {
		t.Fatal(err)
	}
	return c.Processes - 1
}

// replaced is a store whose presence set another one takes over, as after a failover that lost it.
type replaced struct {
	*remote.Memory
	by *atomic.Pointer[remote.Memory]
}

func (r replaced) Presence(
	ctx context.Context, timeout time.Duration, n remote.Node, p remote.Process,
) (remote.Census, error) {
	return r.by.Load().Presence(ctx, timeout, n, p)
}

// A node that has lost its processes hears of all of them within a period. Until then nobody divides by fewer.
func TestFleetStaysWhenPresenceIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var by atomic.Pointer[remote.Memory]
		memory := remote.NewMemory()
		by.Store(memory)
		var fleet []process
		for range 8 {
			l := limiter(t, replaced{memory, &by}, tiered.Policy{Limit: tiered.PerSecond(100)}, nil)
			fleet = append(fleet, process{Limiter: l})
			time.Sleep(370 * ms)
		}
		time.Sleep(6 * time.Second)
		for range 5 {
			by.Store(remote.NewMemory())
			for range 150 {
				time.Sleep(100 * ms)
				for _, p := range fleet {
					if n := p.Group().Stats().Policies["api"].Processes.Sharing; n != 8 {
						t.Fatalf("%d processes after the loss, want 8", n)
					}
				}
			}
		}
	})
}

// An idle process notices by its presence alone that Redis is back. That costs one call per period.
func TestPresenceIsTheProbeOfAnIdleProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(10)}, nil)
		silence(t, store, l)
		store.loseRequests.Store(false)
		calls := store.calls.Load()
		time.Sleep(6 * time.Second)
		if s := node(l); s.Outages.Breaker != "closed" {
			t.Errorf("%+v two periods after Redis came back", s)
		}
		if n := store.calls.Load() - calls; n > 2 {
			t.Errorf("%d calls of an idle process", n)
		}
	})
}
