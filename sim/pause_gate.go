package sim

import (
	"sync"
	"time"
)

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
