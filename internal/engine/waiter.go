package engine

import (
	"context"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// waiter waits for an answer. It has a channel and a timer, so a Group keeps a pool of them. The pool is not global,
// because a timer of a synctest bubble must stay in its bubble.
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
	w.AskAgain, w.More, w.MoreGranted, w.Short = false, 0, 0, false
	return w
}

// wait waits for the verdict, at most d and no longer than until ctx ends. The reason is Granted if there is a verdict.
func (w *waiter) wait(ctx context.Context, d time.Duration, b *Bucket) (local.Verdict, Reason) {
	var canceled <-chan struct{}
	if ctx != nil {
		canceled = ctx.Done()
	}
	w.timer.Reset(d)
	defer w.timer.Stop()
	reason := Unavailable
	select {
	case v := <-w.C:
		return v, Granted
	case <-w.timer.C:
	case <-canceled:
		reason = Canceled
	}
	if b.Leave(w.Waiter) {
		return local.Verdict{}, reason
	}
	return <-w.C, Granted // the verdict came first
}
