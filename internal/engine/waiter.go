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
	w.AskAgain, w.Well, w.More, w.MoreGranted, w.Short, w.Stamp = false, false, 0, 0, false, nil
	return w
}

// wait waits for the outcome, at most d and no longer than until ctx ends. It reports false if
// there is none: the reason is then Canceled, or Unavailable.
func (w *waiter) wait(ctx context.Context, d time.Duration, b *Bucket) (o local.Outcome, answered bool) {
	select {
	case o = <-w.C: // the caller made the call itself
		return o, true
	default:
	}
	w.timer.Reset(d)
	defer w.timer.Stop()
	select {
	case o = <-w.C:
		return o, true
	case <-w.timer.C:
		o.Reason = local.Unavailable
	case <-done(ctx):
		o.Reason = local.Canceled
	}
	if b.Leave(w.Waiter) {
		return o, false
	}
	return <-w.C, true // the outcome came first
}

// done is the channel of a context, which may be nil.
func done(ctx context.Context) <-chan struct{} {
	if ctx == nil {
		return nil
	}
	return ctx.Done()
}

// hasEnded reports whether a context has ended.
func hasEnded(ctx context.Context) bool {
	select {
	case <-done(ctx):
		return true
	default:
		return false
	}
}
