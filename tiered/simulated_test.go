package tiered

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// entropic is the store of a simulator: what is random in a Group besides Options.Random comes from it.
type entropic struct {
	*remote.Memory
	next uint64
}

func (e *entropic) Entropy() uint64 { e.next++; return e.next }
func (*entropic) Settle(uint64)     {}

// Lease ids are random, but those over a simulator's store, which repeat with its numbers.
func TestEntropyIsTheStores(t *testing.T) {
	lease := func(s remote.Store) string {
		g, err := NewGroup(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close(context.Background())
		return *g.lease.Load()
	}
	if a, b := lease(remote.NewMemory()), lease(remote.NewMemory()); a == b || len(a) != 16 {
		t.Errorf("two processes lease as %q and %q", a, b)
	}
	for range 2 {
		if id := lease(&entropic{Memory: remote.NewMemory()}); id != "0000000000000001" {
			t.Errorf("leases as %q over the store of a simulator", id)
		}
	}
	s := &entropic{Memory: remote.NewMemory()}
	lease(s)
	if s.next != 2 {
		t.Errorf("%d numbers were drawn: one is the lease, one the salt of the keys' hashes", s.next)
	}
}

// The hooks hear of what Close itself does: it takes leave, which is a probe while the breaker is open.
func TestHooksHearOfClose(t *testing.T) {
	for range 20 { // whether they did was once for the processors to say
		synctest.Test(t, func(t *testing.T) {
			s := newDistant(ms)
			var states []string
			g, err := NewGroup(s, &Options{Trace: &Trace{State: func(e StateEvent) { states = append(states, e.To) }}})
			if err != nil {
				t.Fatal(err)
			}
			l, err := g.Limiter(Policy{Name: "p", Limit: PerSecond(10), FailMode: FailClosed, Lease: Lease{Size: NoLease}})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * ms)
			s.loseRequests.Store(true)
			n := g.allNodes()[0]
			for n.guard.State() != failover.Open || !n.guard.Ready() {
				l.Allow(t.Context(), "k")
				time.Sleep(10 * ms)
			}
			s.loseRequests.Store(false)
			synctest.Wait()
			before := len(states)
			closeIn(t, &Limiter{group: g, owns: true}, time.Second)
			if told := states[before:]; !slices.Equal(told, []string{"probing", "closed"}) {
				t.Fatalf("told of %q", told)
			}
		})
	}
}
