package legal

import (
	"context"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// hurry draws callers whose context ends before Budget does, of which some have gone already.
func (d *drawer) hurry(p *Plan) []Step {
	b := p.Options.Budget
	return []Step{{
		Verb: Hurry, Who: d.IntN(p.Processes), Which: d.IntN(len(p.Policies)), Key: d.IntN(keys), N: d.IntN(30),
		After: pick(d, 0, ms, 300*ms, 3*second), Pause: pick(d, 0, b/100, b/20, b/10, b/4, b/2, 9*b/10),
	}}
}

// context returns the context of a step's requests.
func (s *Step) context() (context.Context, context.CancelFunc) {
	if s.Verb == Hurry {
		return context.WithTimeout(context.Background(), s.Pause)
	}
	return context.Background(), func() {}
}

// patience returns how long a request of a step takes at most. It leaves half of what its context
// has, or 10 ms if that is less, for the way back; and half of that if it asks twice.
func (w *player) patience(s *Step) time.Duration {
	if s.Verb == Hurry {
		return min(w.plan.Options.Budget, s.Pause*15/16)
	}
	return w.plan.Options.Budget
}

// decides reports whether the store can decide for a caller of a patience. It takes some round trips: to find a node, behind the
// calls that are under way, and of its own. A process that has heard few answers asks for nobody who does not wait for 2 ms
// then. A caller in a hurry may wait for no longer than half of what its context has.
func (w *player) decides(patience time.Duration) bool {
	if patience < w.plan.Options.Budget {
		patience = patience * 8 / 15
	}
	return patience >= max(10*w.plan.Trip, 2*ms+2*w.plan.Trip)
}

// hurry makes requests whose context ends soon. Each has its answer before that.
func (p *process) hurry(s *Step) {
	if s.N%3 == 0 && !p.player.plan.Single {
		p.together(s, s.N%2 == 0)
		return
	}
	for range 1 + s.N/3 {
		p.askBy(s, 0, s.Which, s.Key, p.cost(s), s.N%2 == 0, tiered.Limit{})
	}
}
