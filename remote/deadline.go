package remote

import (
	"context"
	"sync/atomic"
	"time"
)

// deadlineShare is the part of a timeout by which a call's time may be shorter: a thirty-second.
const deadlineShare = 32

// deadlines makes the contexts of calls. Calls that begin shortly after another share its context,
// because a context with a deadline is four allocations and a timer. Their time is then shorter, by
// at most a thirty-second. Two timeouts are usual: that of callers that make their calls
// themselves, and that of senders.
type deadlines struct{ last [2]atomic.Pointer[deadline] }

// deadline is a context that calls share. It ends by its timer only.
type deadline struct {
	ctx     context.Context
	cancel  context.CancelFunc // never called, because calls may still be under way
	timeout time.Duration
	until   time.Time // calls that begin before it may share the context
}

// of returns a context that ends with ctx, and after timeout at the latest. Only contexts without a
// parent are shared: others end when their parent does.
func (d *deadlines) of(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if ctx != context.Background() {
		return context.WithTimeout(ctx, timeout)
	}
	now, place := time.Now(), &d.last[0]
	for i := range d.last {
		last := d.last[i].Load()
		switch current := last != nil && now.Before(last.until); {
		case current && last.timeout == timeout:
			return last.ctx, keep
		case !current:
			place = &d.last[i]
		}
	}
	next := &deadline{timeout: timeout, until: now.Add(timeout / deadlineShare)}
	next.ctx, next.cancel = context.WithTimeout(ctx, timeout)
	place.Store(next)
	return next.ctx, keep
}

// keep is the cancel function of a shared context.
func keep() {}
