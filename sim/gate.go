package sim

import (
	"sync"
	"time"
)

// gate lets everybody through while it is open. Those who come while it is shut wait, and go on when it opens: in the order
// in which they came, a step apart, so that no two do so at one instant, at which the processors would order them.
//
// The zero value is open. Its methods may be called concurrently.
type gate struct {
	step time.Duration // 0 is a microsecond
	own  time.Duration // by how much later all go on: where several gates open at one instant, another for each

	mu      sync.Mutex
	waiting int64
	opened  chan struct{} // nil while it is open; closed when it opens
}

// shut makes those who come wait, until open.
func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened == nil {
		g.opened, g.waiting = make(chan struct{}), 0
	}
}

// open lets all go on. Those who come from now on do not wait, not even for those who did.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
}

// isShut reports whether who comes has to wait.
func (g *gate) isShut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened != nil
}

// pass goes through, and reports whether it had to wait.
func (g *gate) pass() bool {
	g.mu.Lock()
	if g.opened == nil {
		g.mu.Unlock()
		return false
	}
	g.waiting++
	place, opened := g.waiting, g.opened
	g.mu.Unlock()
	<-opened
	time.Sleep(g.own + time.Duration(place)*max(g.step, time.Microsecond))
	return true
}
