package sim

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
)

// slack is the time within which waiting callers continue one after the other, and by which a call
// lasts longer than its timeout. The Group's own timer ends at the timeout, so without slack the
// processors would decide which of the two ends first. In a real process that is the Group's timer,
// because it starts first.
const slack = time.Microsecond

// instants puts callers in an order if several of them wait at the same instant: each gets an
// instant of its own, at which it continues. Without that the processors would decide the order,
// and two runs would differ, because the callers ask for the same keys. The instants depend on the
// callers' numbers only. They are not drawn at random, because of a thousand callers two would draw
// the same one every few seconds.
//
// Times are since the beginning of the run. The zero value is ready, and the methods may be called
// concurrently.
type instants struct {
	mu      sync.Mutex
	arrived time.Duration // when the callers in waiting came
	waiting []*instant
	taken   map[time.Duration]struct{}
}

type instant struct {
	number uint64
	at     time.Duration
}

// join adds a caller that came now, under a number. Call wait once all callers of that instant have
// joined.
func (t *instants) join(now time.Duration, number uint64) *instant {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.assign(now)
	w := &instant{number: number}
	t.arrived, t.waiting = now, append(t.waiting, w)
	return w
}

// wait returns when a caller that has joined continues.
func (t *instants) wait(now time.Duration, w *instant) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.assign(now)
	return w.at
}

// enter returns when a request that comes from outside now may continue: at once, or later if
// another caller continues now.
func (t *instants) enter(now time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.assign(now)
	if _, taken := t.taken[now]; !taken {
		return now
	}
	return t.reserve(now)
}

// assign reserves an instant for each caller that came before now, because no other can join them
// any more.
func (t *instants) assign(now time.Duration) {
	if len(t.waiting) == 0 || t.arrived == now {
		return
	}
	if t.taken == nil {
		t.taken = make(map[time.Duration]struct{})
	}
	for at := range t.taken {
		if at < now {
			delete(t.taken, at)
		}
	}
	slices.SortFunc(t.waiting, func(a, b *instant) int { return cmp.Compare(a.number, b.number) })
	for _, w := range t.waiting {
		w.at = t.reserve(t.arrived + 1 + time.Duration(stable.Mix(w.number)%uint64(slack)))
	}
	t.waiting = t.waiting[:0]
}

// reserve reserves the first free instant from at on.
func (t *instants) reserve(at time.Duration) time.Duration {
	for {
		if _, taken := t.taken[at]; !taken {
			break
		}
		at++
	}
	t.taken[at] = struct{}{}
	return at
}

// pauseGate holds callers up while it is shut. When it opens they continue in the order in which
// they came, some time apart, because at one shared instant the processors would decide their
// order.
//
// The zero value is open. Its methods may be called concurrently.
type pauseGate struct {
	spacing time.Duration // between two callers that waited; 0 means 1 µs
	offset  time.Duration // added for all callers: gates that open at one instant need different ones

	mu      sync.Mutex
	waiting int64
	opened  chan struct{} // nil while the gate is open; closed when it opens
}

// shut makes callers wait until open.
func (g *pauseGate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened == nil {
		g.opened, g.waiting = make(chan struct{}), 0
	}
}

// open lets all callers continue. Those that come from now on wait for nobody.
func (g *pauseGate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
}

// isShut reports whether a caller has to wait.
func (g *pauseGate) isShut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened != nil
}

// pass waits until the gate is open, and reports whether it had to wait.
func (g *pauseGate) pass() bool {
	g.mu.Lock()
	if g.opened == nil {
		g.mu.Unlock()
		return false
	}
	g.waiting++
	place, opened := g.waiting, g.opened
	g.mu.Unlock()
	<-opened
	time.Sleep(g.offset + time.Duration(place)*max(g.spacing, time.Microsecond))
	return true
}
