package tiered

import (
	"sync"
	"testing"
	"time"
)

// What the last user of a waiter heard is not news for the next. The bucket admits the next from its pot, so nothing came
// with that token for those behind, and they are not to get any.
func TestWaiterIsFresh(t *testing.T) {
	l := hot(t, "k")
	g := l.group
	g.waiters = sync.Pool{New: func() any {
		w := newWaiter().(*waiter)
		w.MoreGranted, w.Short = 5, true
		return w
	}}
	s := l.stand(t.Context(), l.id("k"), "k", 1)
	g.turns.enter(t.Context(), s)
	defer g.turns.leave(s)
	now := g.now()
	p := part{taking: taking{limiter: l, key: "k", cost: 1, waits: s}, now: now, until: now + time.Second}
	p.from(g.find(now, l.id("k")), 0)
	p.join()
	if p.state != taken || s.more != 0 || s.short {
		t.Errorf("state %d, %d tokens for those behind, short %t: want %d, 0, false", p.state, s.more, s.short, taken)
	}
}
