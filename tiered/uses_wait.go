package tiered

import (
	"context"
	"time"
)

// maxSpread is the longest random delay of a caller that returned tokens. The tokens take that long to arrive in Redis.
const maxSpread = 50 * time.Millisecond

// Wait waits until all uses are admitted together, and takes their tokens: all or nothing. It returns nil if the tokens
// were taken. It returns ctx.Err() if ctx ended first; then nothing was taken. It returns a *[LimitedError] at once if
// waiting cannot help, as [Limiter.WaitN] does.
//
// It holds no tokens while it waits. It waits in the queue of the key that refused it, first come, first served, and in
// no other. So a caller that waits for one user's limit does not delay callers for another user of the same tenant.
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
	waiter  *queuedCaller // marks the request as one of a caller that waits
	first   *queuedCaller // its first place in a queue, which has its figures; nil before
	place   *queuedCaller // its present place; nil if it is in no queue
}

// wait waits for the tokens.
func (w *usesWait) wait(ctx context.Context) error {
	w.request = w.uses.request(make(request, 0, w.uses.n))
	for i := range w.request { // queue behind callers that wait already
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
		case p == nil || p.unavailability() > 0 || p.retry == 0:
			return d.Err()
		}
		if err := w.sleep(ctx, p); err != nil {
			return err
		}
	}
}

// ask requests all tokens together.
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

// sleep waits in the queue of the part p, which refused, until it is w's turn and p's tokens can be there.
func (w *usesWait) sleep(ctx context.Context, p *part) error {
	c := w.at(ctx, p)
	pause, err := c.pause(p.outcome)
	if err != nil {
		return err
	}
	for i := range w.request { // the fallback refused other parts too
		if other := &w.request[i]; other != p && other.state == refused && other.reason == FallbackSpent {
			w.at(ctx, other).notRefused()
		}
	}
	if w.request.has(taken) { // two callers may have refused each other: they must not collide again
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

// at returns w's place in the queue of a part's key: the present one, or a new one.
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

// enter waits for the turn of a place, unless w has it. It leaves w's previous place first.
func (w *usesWait) enter(ctx context.Context, c *queuedCaller) error {
	w.first.beginWait()
	if w.place == c {
		return nil
	}
	w.leave()
	c.since = w.first.since // it counts as one wait
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
