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
	asked   string // the key of the request, which may be longer than key.name
	n       int64
	at      time.Duration // when it was given
	link    fifo.Place[*Place]

	// Guarded by the Limiter's mutex.
	ended bool // it was given back, or held for longer than MaxRun
	lost  bool
	kept  context.Context // ends when it is lost; nil until Context is called
	lose  context.CancelCauseFunc
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
// than MaxRun. The request itself goes on. Until it releases the place, it counts, but not beyond
// MaxRun.
func (p *Place) Lost() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.untilLost().Done()
}

// untilLost returns a context that ends when the place is lost.
func (p *Place) untilLost() context.Context {
	p.limiter.mu.Lock()
	defer p.limiter.mu.Unlock()
	if p.kept == nil {
		p.kept, p.lose = context.WithCancelCause(context.Background())
		if p.lost {
			p.lose(ErrLost)
		}
	}
	return p.kept
}

// Context returns a context that ends with ErrLost as its cause when the place is lost. The
// function ends it, and must be called.
func (p *Place) Context(parent context.Context) (context.Context, context.CancelFunc) {
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithCancelCause(parent)
	if p == nil {
		return ctx, func() { cancel(nil) }
	}
	kept := p.untilLost()
	if kept.Err() != nil {
		cancel(ErrLost)
	}
	stop := context.AfterFunc(kept, func() { cancel(ErrLost) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
