package faultnet

import (
	"context"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
)

// Net is a network of connections that share their faults. All methods are safe for concurrent use,
// and none but a dial blocks. Make it with [New].
type Net struct {
	linger time.Duration // see there
	seed   uint64
	faults atomic.Pointer[Faults] // never nil, never written to

	counting sync.Mutex
	counts   Counts

	mu      sync.Mutex
	changed sync.Cond // of faults, or a dial's time has come
	numbers uint64    // connections begun
	open    map[*conn]struct{}
}

// New returns a network without faults. Whatever is left to chance on it comes from the seed.
func New(seed uint64) *Net {
	n := &Net{seed: seed, linger: linger, open: map[*conn]struct{}{}}
	n.changed.L = &n.mu
	n.faults.Store(new(Faults))
	return n
}

// Set makes f the faults of the network from now on: of new connections, of open ones, and of calls
// blocked on them. What is under way arrives as it would have, or sooner, if written now it would.
// An error names each field that breaks its rule, and nothing has changed then.
func (n *Net) Set(f Faults) error {
	if err := f.validate(); err != nil {
		return err
	}
	n.faults.Store(&f)
	for _, c := range n.conns() {
		c.follow()
	}
	n.wake()
	return nil
}

// Faults returns the faults as they were last set.
func (n *Net) Faults() Faults { return *n.faults.Load() }

// Cut cuts all open connections now, and those that were closed and have something under way: by a
// reset, where the transport knows one.
func (n *Net) Cut() {
	for _, c := range n.conns() {
		c.mu.Lock()
		c.cut(&n.counts.CutNow)
		c.mu.Unlock()
	}
}

// Counts returns what has happened so far.
func (n *Net) Counts() Counts {
	n.counting.Lock()
	defer n.counting.Unlock()
	return n.counts
}

// count counts one of Counts.
func (n *Net) count(what *int64) {
	n.counting.Lock()
	defer n.counting.Unlock()
	*what++
}

// Dialer returns a function that dials over this network; it fits redis.Options.Dialer. It dials
// with the function given, nil is that of a net.Dialer, once the network lets it; an error of the
// network is a *net.OpError around ECONNREFUSED or the context's error.
func (n *Net) Dialer(dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		number := n.number()
		if err := n.reach(ctx, number); err != nil {
			return nil, &net.OpError{Op: "dial", Net: network, Addr: address{network, addr}, Err: err}
		}
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return n.wrap(c, number), nil
	}
}

// Conn puts the network's faults into a connection, which it owns from then on. The connection must
// honor its deadlines.
func (n *Net) Conn(c net.Conn) net.Conn { return n.wrap(c, n.number()) }

// number returns the next connection's.
func (n *Net) number() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.numbers++
	return n.numbers
}

// What a connection draws its chances for, each from a source of its own.
const (
	forDialing = iota
	forWriting
	forArriving // of what comes in
	chances
)

func (n *Net) chance(number, of uint64) *rand.Rand {
	return rand.New(rand.NewPCG(stable.Mix(n.seed), stable.Mix(number*chances+of)))
}

// reach waits until a dial would be answered: for a round trip, and as long as dials are held.
func (n *Net) reach(ctx context.Context, number uint64) error {
	if *n.faults.Load() == (Faults{}) {
		return nil // the dial itself looks at the context
	}
	chance := n.chance(number, forDialing)
	there, back := chance.Float64(), chance.Float64()
	stop := context.AfterFunc(ctx, n.wake)
	defer stop()
	n.mu.Lock()
	defer n.mu.Unlock()
	var due time.Time // of the answer; zero: none comes
	counted := false
	for {
		f := n.faults.Load()
		if f.Refuse {
			n.count(&n.counts.Refused)
			return os.NewSyscallError("connect", syscall.ECONNREFUSED)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		now := time.Now()
		if f.HoldDial {
			due = time.Time{}
			if !counted {
				counted = true
				n.count(&n.counts.Held)
			}
		} else if trip := f.due(f.due(now, there), back); due.IsZero() || trip.Before(due) {
			due = trip
		}
		if !due.IsZero() && !now.Before(due) {
			return nil
		}
		waitUntil(&n.changed, due)
	}
}

// wake makes all dials look again.
func (n *Net) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed.Broadcast()
}

// wrap makes c a connection of the network.
func (n *Net) wrap(c net.Conn, number uint64) net.Conn {
	n.count(&n.counts.Dialed)
	w := newConn(n, c, number)
	n.mu.Lock()
	n.open[w] = struct{}{}
	n.mu.Unlock()
	w.follow() // faults may have been set since they were last looked at
	return w
}

// forget drops a connection that has ended.
func (n *Net) forget(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.open, c)
}

// conns lists the open connections, those with something under way included, in the order of
// dialing: what is done to all of them is done in the same order each time.
func (n *Net) conns() []*conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.SortedFunc(maps.Keys(n.open), func(a, b *conn) int { return int(a.number) - int(b.number) })
}

// waitUntil waits for a broadcast, but not past the time that is given; zero is none. The lock of
// the condition is held.
func waitUntil(c *sync.Cond, t time.Time) {
	if !t.IsZero() {
		timer := time.AfterFunc(time.Until(t), func() {
			c.L.Lock()
			defer c.L.Unlock()
			c.Broadcast()
		})
		defer timer.Stop()
	}
	c.Wait()
}

// address is what was dialed, for errors.
type address struct{ network, addr string }

func (a address) Network() string { return a.network }
func (a address) String() string  { return a.addr }
