package tiered_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// entropic is the store of a simulator: what is random in a Group besides Options.Random comes from
// it.
type entropic struct {
	*remote.Memory
	next  uint64
	calls []lua.Call              // that left
	whose map[*local.Bucket]int64 // what each bucket held when the last of them did

	mu      sync.Mutex
	settled []uint64 // who waited at an instant, by number; senders have none
}

var _ engine.Simulated = (*entropic)(nil)

func (e *entropic) Entropy() uint64 { e.next++; return e.next }

func (e *entropic) Yield(order uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if order != 0 {
		e.settled = append(e.settled, order)
	}
}

func (e *entropic) Sends(now time.Duration, c *lua.Call, b *local.Bucket) {
	if e.whose == nil {
		e.whose = make(map[*local.Bucket]int64)
	}
	e.calls = append(e.calls, *c)
	e.whose[b], _ = b.Peek(now)
}

// Sends is called before each call leaves, with its bucket. The bucket holds what the call states.
func TestSimulatorIsToldWhatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &entropic{Memory: remote.NewMemory()}
		l := must(tiered.New(s, tiered.Policy{Name: "api", Limit: tiered.PerSecond(1000)}, nil))
		held := 0
		for range 2000 {
			l.Allow(ctx, "k")
			time.Sleep(time.Millisecond)
			synctest.Wait() // Sends is called by senders
			for b, live := range s.whose {
				if c := s.calls[len(s.calls)-1]; c.Lease != "" && live != c.Hold {
					t.Fatalf("the bucket of %q holds %d, the call says %d", b.ID().Key, live, c.Hold)
				} else if live > 0 {
					held++
				}
			}
		}
		ok(t, l.Close(ctx))
		if len(s.calls) < 5 || held == 0 || s.calls[0].Bucket != s.Key("api", "k") {
			t.Errorf("told of %d calls, %d of them with something held; the first is %+v", len(s.calls), held, s.calls[0])
		}
	})
}

// Lease ids are random. Over a simulator's store they repeat with its random numbers.
func TestEntropyIsTheStores(t *testing.T) {
	lease := func(s remote.Store) string {
		g := must(tiered.NewGroup(s, nil))
		defer g.Close(ctx)
		return *tiered.Engine(g).Lease.Load()
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

// The hooks receive what Close itself does: ending the presence is a probe while the breaker is
// open.
func TestHooksHearOfClose(t *testing.T) {
	for range 20 { // whether they did was once for the processors to say
		synctest.Test(t, func(t *testing.T) {
			s := newDistant(ms)
			var states []string
			g := must(tiered.NewGroup(s, &tiered.Options{Trace: &tiered.Trace{State: func(e tiered.Event) { states = append(states, e.What) }}}))
			l := must(g.NewLimiter(tiered.Policy{
				Name: "p", Limit: tiered.PerSecond(10), FailMode: tiered.FailClosed, Lease: neverLeased,
			}))
			time.Sleep(100 * ms)
			s.loseRequests.Store(true)
			n := tiered.Dispatch(g).Nodes()[0]
			for n.State() != failover.Open || !n.ProbeDue(tiered.Engine(g).Now()) {
				l.Allow(ctx, "k")
				time.Sleep(10 * ms)
			}
			s.loseRequests.Store(false)
			synctest.Wait()
			before := len(states)
			ok(t, g.Close(ctx))
			if told := states[before:]; !slices.Equal(told, []string{"probing", "closed"}) {
				t.Fatalf("told of %q", told)
			}
		})
	}
}

// Many may wait for one answer. Before a request over several keys goes on, at one instant, each
// settles, under a number that no other has.
func TestWhoWaitedSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &entropic{Memory: remote.NewMemory()}
		l := must(tiered.New(s, direct("api", 4), nil))
		defer l.Close(ctx)
		synctest.Wait()
		s.settled = nil // the first announcement has a number too
		check := func(what string, ok bool, times int) {
			t.Helper()
			until := uint64(tiered.Engine(l.Group()).Now() + tiered.OptionsOf(l.Group()).Budget)
			if want := slices.Repeat([]uint64{until}, times); !ok || !slices.Equal(s.settled, want) {
				t.Errorf("%s: allowed %v, and who settled is %v, want %v", what, ok, s.settled, want)
			}
			s.settled = nil
			time.Sleep(time.Second)
		}
		check("one key", l.Allow(ctx, "x").Allowed, 0)
		check("two keys", tiered.All(l.For("y"), l.For("z")).Allow(ctx).Allowed, 2)
	})
}
