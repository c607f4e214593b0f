package engine

import (
	"context"
	"time"
)

// What tests of package tiered need of the inside.

// StandStill makes it look as if the wall clock had gone on for d while this process stood still.
func (g *Group) StandStill(d time.Duration) { g.wallAhead.Add(-int64(d)) }

// KeysWaitedFor returns for how many keys callers wait.
func (g *Group) KeysWaitedFor() int {
	g.queues.mu.Lock()
	defer g.queues.mu.Unlock()
	return len(g.queues.queues)
}

// HoldTurn takes the turn of a key for which nobody waits, and passes it on when release is called.
func (l *Limiter) HoldTurn(ctx context.Context, key string) (release func()) {
	c := newQueuedCaller(ctx, l, l.ID(key), key, 1)
	l.Group.queues.enter(ctx, c)
	return func() { l.Group.queues.leave(c) }
}
