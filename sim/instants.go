package sim

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
)

// slack is the span within which callers that wait continue, and by which a call outlasts its timeout. The Group's own
// timer ends at the same instant; without slack the processors would decide which of the two is first. In a real
// process it is the Group's timer, which starts first.
const slack = time.Microsecond

// instants gives each caller of a process that waits for all else at one instant an instant of its own to continue at.
// Callers that share an instant would run in the order of the processors, and they ask for the same keys. The instants
// depend on the callers' numbers alone. Drawing them at random is not enough: of a thousand callers, a run drew one
// twice every few seconds.
//
// Times are since the beginning of the run. The zero value is ready, and the methods may be called concurrently.
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

// join adds a caller that came now, under a number. Once all callers of that instant have joined, wait returns when it
// continues.
func (t *instants) join(now time.Duration, number uint64) *instant {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.assign(now)
	w := &instant{number: number}
	t.arrived, t.waiting = now, append(t.waiting, w)
	return w
}

func (t *instants) wait(now time.Duration, w *instant) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.assign(now)
	return w.at
}

// enter is for a request from outside that comes now. It returns when the request may continue: now, or later if now is
// reserved.
func (t *instants) enter(now time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.assign(now)
	if _, taken := t.taken[now]; !taken {
		return now
	}
	return t.reserve(now)
}

// assign reserves instants for the callers that came before now: nobody can join them any more.
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

// pauseGate is passed at once while it is open. Callers that come while it is shut wait. When it opens they continue in
// the order in which they came, some time apart: at one shared instant the processors would decide their order.
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
