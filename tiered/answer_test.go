package tiered

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// A reused waiter carries nothing over from its last use. The bucket admits the next request from its pot, so no tokens
// came for callers behind it, and they get none.
func TestWaiterIsFresh(t *testing.T) {
	l, err := New(remote.NewMemory(), Policy{Name: "api", Limit: PerSecond(1 << 36)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())           //nolint:errcheck // nothing is to be returned
	for l.Allow(t.Context(), "k").Tier != Local { // until it leases
	}
	g := l.group
	g.waiters = sync.Pool{New: func() any {
		w := newWaiter().(*waiter)
		w.MoreGranted, w.Short = 5, true
		return w
	}}
	c := newQueuedCaller(t.Context(), l, l.id("k"), "k", 1)
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
