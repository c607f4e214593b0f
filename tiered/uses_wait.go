package tiered

import (
	"context"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// maxSpread is the longest time that keeps callers apart that gave something back: it takes as long to arrive.
const maxSpread = 50 * time.Millisecond

// Wait waits until all uses are admitted together, and takes their tokens: all or nothing. It returns nil when they
// were taken, ctx.Err() when ctx ended first (and then nothing was taken), or a *[LimitedError] at once when waiting
// cannot help, as [Limiter.WaitN] does.
//
// Nothing is held while it waits. A waiter stands in line, first come, first served, at the key that refused it, and
// at no other: who waits for one user's limit does not hold up another's, though both need the same tenant's.
func (u Uses) Wait(ctx context.Context) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	w := usesWait{uses: u, waiter: &queuedCaller{several: true}}
	defer w.leave()
	err := w.wait(ctx)
	if w.first == nil {
		return err
	}
	return w.first.countEnd(err)
}

// usesWait is one call of [Uses.Wait].
type usesWait struct {
	uses    Uses
	request request
	waiter  *queuedCaller // says that the request is for somebody who waits
	first   *queuedCaller // where it stood first, which has its figures; nil before
	place   *queuedCaller // where it stands; nil if nowhere
}

// wait waits for the tokens.
func (w *usesWait) wait(ctx context.Context) error {
	w.request = w.uses.request(make(request, 0, w.uses.n))
	for i := range w.request { // behind those who wait already
		if p := &w.request[i]; p.limiter != nil && p.limiter.group.queues.hasCallers(p.limiter.id(p.key)) {
			if err := w.enter(ctx, w.at(ctx, p)); err != nil {
				return err
			}
			break
		}
	}
	for {
		p, d := w.ask(ctx)
		switch {
		case d.Allowed:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case p == nil || p.unavailability() > 0 || d.RetryAfter == 0:
			return d.Err()
		}
		if err := w.sleep(ctx, p, &d); err != nil {
			return err
		}
	}
}

// ask asks for all tokens together.
func (w *usesWait) ask(ctx context.Context) (strictest *part, d Decision) {
	w.request = w.uses.request(w.request[:0])
	for i := range w.request {
		if p := &w.request[i]; p.limiter != nil && !p.shadow() {
			p.caller = w.waiter
		}
	}
	if w.place != nil {
		w.place.limiter.group.queues.startAsking(w.place)
	}
	strictest = w.request.decide(ctx, &d)
	if w.place != nil && !d.Allowed {
		w.place.limiter.group.queues.stopAsking(w.place)
	}
	return strictest, d
}

// sleep sleeps in the queue of the part p, which refused, until its tokens can be there and it has the turn.
func (w *usesWait) sleep(ctx context.Context, p *part, d *Decision) error {
	c := w.at(ctx, p)
	pause, err := c.pause(d)
	if err != nil {
		return err
	}
	for i := range w.request { // the share refused others too
		if other := &w.request[i]; other != p && other.state == refused && other.d.Reason == ShareSpent {
			w.at(ctx, other).notRefused(local.ShareSpent)
		}
	}
	if w.request.has(taken) { // two callers may have refused each other: they must not meet again
		pause += time.Duration(p.limiter.group.options.uniform() * float64(maxSpread))
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	if err := w.enter(ctx, c); err != nil {
		return err
	}
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// at returns the place at a part's key: the one where w stands, or a new one.
func (w *usesWait) at(ctx context.Context, p *part) *queuedCaller {
	id := p.limiter.id(p.key)
	if c := w.place; c != nil && c.id == id && c.limiter == p.limiter {
		return c
	}
	c := p.limiter.newQueuedCaller(ctx, id, p.key, p.cost)
	c.several = true
	if w.first == nil {
		w.first = c
	}
	return c
}

// enter waits for the turn at a place, unless w has it, and leaves the place where w stood before.
func (w *usesWait) enter(ctx context.Context, c *queuedCaller) error {
	w.first.beginWait()
	if w.place == c {
		return nil
	}
	w.leave()
	c.since = w.first.since // it waits once
	switch e := c.limiter.group.queues.enter(ctx, c); e.kind {
	case gaveUp:
		return ctx.Err()
	case outOfTime:
		return c.late(e.retry)
	}
	w.place = c
	return nil
}

func (w *usesWait) leave() {
	if w.place != nil {
		w.place.limiter.group.queues.leave(w.place)
		w.place = nil
	}
}
