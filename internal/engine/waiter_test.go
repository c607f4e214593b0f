package engine

import (
	"sync"
	"testing"
)

// A reused waiter carries nothing over from its last use: a request that its bucket admits at once
// would hand out to those behind it the tokens that the last user of the waiter got for others.
func TestWaiterIsFresh(t *testing.T) {
	g := &Group{waiters: sync.Pool{New: func() any {
		w := newWaiter().(*waiter)
		w.AskAgain, w.More, w.MoreGranted, w.Short = true, 3, 5, true
		return w
	}}}
	w := g.waiter()
	if w.AskAgain || w.More != 0 || w.MoreGranted != 0 || w.Short {
		t.Errorf("%+v", w.Waiter)
	}
}
