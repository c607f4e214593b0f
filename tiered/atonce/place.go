package atonce

import (
	"context"
	"errors"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/fifo"
)

// ErrLost is the cause of a context of [Place.Context] whose place was lost.
var ErrLost = errors.New("atonce: the place was lost")

// Place is what a request has while it runs. Its methods may be called concurrently, and on nil.
type Place struct {
	limiter *Limiter
	key     *key
	n       int64
	at      time.Duration // when it was given
	link    fifo.Place[*Place]

	// Guarded by the Limiter's mutex.
	ended  bool // it was given back, or held for longer than MaxRun
	lost   bool
	done   chan struct{}  // closed when it is lost; nil until somebody asks
	cancel map[int]func() // by number
	next   int            // number of the next cancel
}

// Release gives the place back. Only the first call counts, also after the Group was closed. It
// does not block: another process gets the place within 100 ms.
func (p *Place) Release() {
	if p == nil {
		return
	}
	l := p.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if !p.ended {
		l.end(p)
		l.settle(p.key, l.group.Now())
	}
}

// Lost returns a channel that is closed when Redis may have given the place to others: this process
// stood still, or Redis did not hear of it, for longer than Life, or the request runs for longer
// than MaxRun. The request itself goes on. Until it releases the place, it counts.
func (p *Place) Lost() <-chan struct{} {
	if p == nil {
		return nil
	}
	p.limiter.mu.Lock()
	defer p.limiter.mu.Unlock()
	if p.done == nil {
		p.done = make(chan struct{})
		if p.lost {
			close(p.done)
		}
	}
	return p.done
}

// Context returns a context that ends with ErrLost as its cause when the place is lost. The
// function ends it, and must be called.
func (p *Place) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	if p == nil {
		return ctx, func() { cancel(nil) }
	}
	l := p.limiter
	l.mu.Lock()
	if p.lost {
		l.mu.Unlock()
		cancel(ErrLost)
		return ctx, func() {}
	}
	if p.cancel == nil {
		p.cancel = make(map[int]func())
	}
	number := p.next
	p.next++
	p.cancel[number] = func() { cancel(ErrLost) }
	l.mu.Unlock()
	return ctx, func() {
		l.mu.Lock()
		delete(p.cancel, number)
		l.mu.Unlock()
		cancel(nil)
	}
}

// lose tells that a place is lost. It returns what to call without the lock.
func (p *Place) lose() (tell []func()) {
	p.lost = true
	if p.done != nil {
		close(p.done)
	}
	for _, cancel := range p.cancel {
		tell = append(tell, cancel)
	}
	p.cancel = nil
	if hook := p.limiter.policy.Load().Lost; hook != nil {
		tell = append(tell, func() { hook(p.key.name, int(p.n)) })
	}
	return tell
}
