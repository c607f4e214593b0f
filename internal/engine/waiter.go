package engine

import (
	"context"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// waiter waits for an answer. Who waits for tokens is a queuedCaller. It has a channel and a timer,
// so a Group keeps a pool of them. The pool is not global, because a timer of a synctest bubble
// must stay in its bubble.
type waiter struct {
	*local.Waiter
	timer *time.Timer
}

func newWaiter() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &waiter{local.NewWaiter(), t}
}

// waiter returns a waiter from the pool.
func (g *Group) waiter() *waiter {
	w := g.waiters.Get().(*waiter)
	w.AskAgain, w.More, w.MoreGranted, w.Short, w.Stamp = false, 0, 0, false, nil
	return w
}

// wait waits for the outcome, at most d and no longer than until ctx ends. It reports false if
// there is none: the reason is then Canceled, or Unavailable.
func (w *waiter) wait(ctx context.Context, d time.Duration, b *Bucket) (o local.Outcome, answered bool) {
	var canceled <-chan struct{}
	if ctx != nil {
		canceled = ctx.Done()
	}
	w.timer.Reset(d)
	defer w.timer.Stop()
	select {
	case o = <-w.C:
		return o, true
	case <-w.timer.C:
		o.Reason = local.Unavailable
	case <-canceled:
		o.Reason = local.Canceled
	}
	if b.Leave(w.Waiter) {
		return o, false
	}
	return <-w.C, true // the outcome came first
}
