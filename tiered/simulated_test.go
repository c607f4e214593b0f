package tiered

import (
	"context"
	"testing"

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
