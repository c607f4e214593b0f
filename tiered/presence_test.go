package tiered_test

import (
	"context"
	"io"
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

// size is the number that the process divides limits by.
func (p process) size() int64 { return p.Group().Stats().Nodes["memory"].Processes }

// present counts the processes that a store knows, with a visitor that leaves again.
func present(t *testing.T, m *remote.Memory) int64 {
	t.Helper()
	c := must(m.Presence(context.Background(), 0, m.Node(""), remote.Process{ID: "visitor", TTL: dispatch.PresenceTTL}))
	if _, err := m.Presence(context.Background(), 0, m.Node(""), remote.Process{ID: "visitor", TTL: 0}); err != nil {
		t.Fatal(err)
	}
	return c.Processes - 1
}

func TestFleetIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := remote.NewMemory()
		var fleet []process
		for range 50 {
			fleet = append(fleet, startProcess(t, memory))
			time.Sleep(37 * ms)
		}
		if n := present(t, memory); n != 50 {
			t.Errorf("%d present, want 50 at once: none waits for its first period", n)
		}
		time.Sleep(6 * time.Second)
		for i, p := range fleet {
			if n := p.size(); n != 50 {
				t.Errorf("process %d counts %d two periods after the last arrival, want 50", i, n)
			}
		}

		// Twenty leave in peace, and are gone at once; but those who stay divide by fewer only ten seconds later.
		for _, p := range fleet[:20] {
			closeIn(t, p.Limiter, time.Second)
		}
		if n := present(t, memory); n != 30 {
			t.Errorf("%d present after 20 of 50 left, want 30", n)
		}
		fleet = fleet[20:]
		left := time.Now()
		sizes := func(want int64) {
			t.Helper()
			for i, p := range fleet {
				if n := p.size(); n != want {
					t.Errorf("%v later: process %d counts %d, want %d", time.Since(left), i, n, want)
				}
			}
		}
		time.Sleep(6 * time.Second)
		sizes(50)
		time.Sleep(4*time.Second + 3*time.Second)
		sizes(30)

		// Ten are killed: they count until their entries are over, and no longer.
		var dead []process
		dead, fleet = fleet[:10], fleet[10:]
		for _, p := range dead {
			p.wire.loseRequests.Store(true)
		}
		left = time.Now()
		time.Sleep(6900 * ms)
		if n := present(t, memory); n != 30 {
			t.Errorf("%d present %v after the end of 10 of 30: a slow process would be counted out", n, time.Since(left))
		}
		time.Sleep(3120 * ms)
		if n := present(t, memory); n != 20 {
			t.Errorf("%d present %v after the end of 10 of 30, want 20", n, time.Since(left))
		}
		sizes(30)
		time.Sleep(10*time.Second + 3*time.Second)
		sizes(20)

		// One more: it counts for all others within a period.
		late := startProcess(t, memory)
		left = time.Now()
		time.Sleep(3 * time.Second)
		fleet = append(fleet, late)
		sizes(21)
		for _, p := range append(fleet, dead...) {
			closeIn(t, p.Limiter, 30*time.Second)
		}
		if n := present(t, memory); n != 0 {
			t.Errorf("%d present when all have left", n)
		}
	})
}

// While no node answers, the last number of processes counts, for any time. A smaller one would make the shares larger.
func TestFleetStaysWhilePresenceCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := remote.NewMemory()
		var fleet []process
		for range 8 {
			fleet = append(fleet, startProcess(t, memory))
		}
		time.Sleep(6 * time.Second)
		memory.Fail(io.EOF)
		time.Sleep(10 * time.Minute)
		alone := 0
		for _, p := range fleet {
			if n := p.size(); n != 8 {
				t.Errorf("%d processes after ten minutes of silence, want 8", n)
			}
			for p.Allow(t.Context(), "k").Allowed {
				alone++
			}
		}
		if alone != 8*12 { // ⌊100/8⌋ each
			t.Errorf("%d admitted alone, want 96", alone)
		}
		// Back again: all entries are over, and the first to come sees itself only. Once it took itself for the
		// only one.
		memory.Fail(nil)
		for range 90 {
			time.Sleep(time.Second)
			for _, p := range fleet {
				if n := p.size(); n != 8 {
					t.Fatalf("%d processes after the outage, want 8", n)
				}
			}
		}
		for _, p := range fleet {
			closeIn(t, p.Limiter, 5*time.Second)
		}
	})
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

func TestProcessesIsTheFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(100)}, &tiered.Options{Processes: 5})
		p := process{Limiter: l}
		for range 10 {
			if n := p.size(); n != 5 {
				t.Fatalf("%d, want 5", n)
			}
			time.Sleep(dispatch.PresencePeriod)
		}
		var others []process
		for range 6 {
			others = append(others, startProcess(t, store.Memory))
		}
		time.Sleep(6 * time.Second)
		if n := p.size(); n != 7 {
			t.Errorf("%d, want 7", n)
		}
		for _, o := range others {
			closeIn(t, o.Limiter, time.Second)
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
