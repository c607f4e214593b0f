package tiered

import (
	"sync"
	"testing"
	"time"
)

// What the last user of a waiter heard is not news for the next. The bucket admits the next from its pot, so
// nothing came with that token for those behind, and they are not to get any.
func TestWaiterIsFresh(t *testing.T) {
	l := hot(t, "k")
	g := l.group
	g.waiters = sync.Pool{New: func() any {
		w := newWaiter().(*waiter)
		w.MoreGranted, w.Short = 5, true
		return w
	}}
	c := l.newQueuedCaller(t.Context(), l.id("k"), "k", 1)
	g.queues.enter(t.Context(), c)
	defer g.queues.leave(c)
	now := g.now()
	p := part{taking: taking{limiter: l, key: "k", cost: 1, caller: c}, now: now, until: now + time.Second}
	p.setSource(g.find(now, l.id("k")), 0)
	p.join()
	if p.state != taken || c.more != 0 || c.short {
		t.Errorf("state %d, %d tokens for those behind, short %t: want %d, 0, false", p.state, c.more, c.short, taken)
	}
}
