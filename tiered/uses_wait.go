package tiered

import (
	"context"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// mixUp is the most by which those who gave something back are held apart: as long as that takes to arrive.
const mixUp = 50 * time.Millisecond

// Wait waits until all uses are admitted together, and takes their tokens: all or nothing. It returns nil when they were
// taken, ctx.Err() when ctx ended first (and then nothing was taken), or a *[LimitedError] at once when waiting cannot help,
// as [Limiter.WaitN] does.
//
// Nothing is held while it waits. A waiter stands in line, first come, first served, at the key that refused it, and at no
// other: who waits for one user's limit does not hold up another's, though both need the same tenant's.
func (u Uses) Wait(ctx context.Context) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	legs := u.legs(make([]leg, 0, u.n))
	var line place
	defer line.leave()
	for i := range legs { // behind those who wait already
		if t := &legs[i]; t.limiter != nil && t.limiter.group.turns.busy(t.limiter.id(t.key)) {
			if err := line.enter(ctx, t); err != nil {
				return err
			}
			break
		}
	}
	for {
		legs = u.legs(legs[:0])
		var d Decision
		t := together(ctx, legs, &d)
		switch {
		case d.Allowed:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case t == nil || t.hopeless() > 0 || d.RetryAfter == 0:
			return d.Err()
		}
		pause := min(d.RetryAfter, lookAgain)
		if d.Reason == ShareSpent {
			pause = min(pause, lookAgainAlone)
		}
		if anyOf(legs, taken) { // two may have refused each other so: they are not to meet again
			pause += time.Duration(t.limiter.group.options.uniform() * float64(mixUp))
		}
		timer := time.NewTimer(pause)
		err := line.enter(ctx, t)
		if err == nil {
			select {
			case <-timer.C:
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		timer.Stop()
		if err != nil {
			return err
		}
	}
}

// place is a turn at one key, or none.
type place struct {
	group *Group
	id    local.ID
}

// enter waits for the turn at a leg's key, unless it has it, and leaves the place where it stood before.
func (p *place) enter(ctx context.Context, t *leg) error {
	g, id := t.limiter.group, t.limiter.id(t.key)
	if p.group == g && p.id == id {
		return nil
	}
	p.leave()
	if err := g.turns.enter(ctx, id); err != nil {
		return err
	}
	p.group, p.id = g, id
	return nil
}

func (p *place) leave() {
	if p.group != nil {
		p.group.turns.leave(p.id)
		p.group = nil
	}
}
