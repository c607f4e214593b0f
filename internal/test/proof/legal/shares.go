package legal

import (
	"context"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// standing gives a plan an ordinary policy whose standing shares are full at its first step.
func (d *drawer) standing(p *Plan) {
	x := tiered.Policy{
		Standing: pick(d, 1./8, 1./4, 1./2, 3./4), FailMode: tiered.FailMode(d.IntN(3)),
		Limit: tiered.Limit{Tokens: pick(d, int64(20), 80, 200), Per: second, Burst: pick(d, int64(100), 200, 400)},
	}
	if d.one(2) {
		x.Algorithm, x.Calendar = tiered.FixedWindow, d.one(2)
		x.Limit = tiered.Limit{Tokens: pick(d, int64(100), 200, 400), Per: pick(d, 2*second, 10*second, time.Minute)}
	}
	p.only(Calm, x)
	p.Warm = 100 * second
}

// stranger draws a process that wants no standing shares, or others, that comes, uses a key and
// leaves, and then a surge of that key: soon, or when the key is full again.
func (d *drawer) stranger(p *Plan) []Step {
	l, key := p.Policies[0].Limit, d.IntN(keys)
	full := time.Duration(burst(l)) * l.Per / time.Duration(l.Tokens)
	return []Step{
		{Verb: Stranger, Key: key, N: 1 + d.IntN(200), After: pick(d, 0, 30*second), Pause: pick(d, ms, 10*ms, 50*ms)},
		{Verb: Surge, Who: d.IntN(p.Processes), Key: key, After: pick(d, full, time.Duration(d.Int64N(int64(15*second))).Truncate(ms))},
	}
}

// stranger is a process that wants no standing shares, or others. It comes, uses a key once a Ping
// has told it of the others, and leaves.
func (w *player) stranger(s *Step) {
	const beside = 3000 // its slot
	if w.plan.Policies[s.Which].Standing == 0 || w.plan.Real || w.plan.Thin {
		return
	}
	n, _ := w.slots[s.Who].wire.state()
	p := w.start(beside, n, func(_ int, x *tiered.Policy) { x.Standing = []float64{0, 0, 1. / 8, 1. / 2}[s.N%4] })
	p.register()
	if p.group.Ping(context.Background()) != nil {
		s.N = 0 // it has not heard of the others
	}
	for range s.N {
		p.one(s)
		time.Sleep(s.Pause)
	}
	p.ends()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = append(w.gone, p)
	for _, all := range w.histories {
		for _, b := range all {
			b.noMore(beside, w.now())
		}
	}
}

// surge takes all that a key has, in one process after the other.
func (w *player) surge(s *Step) {
	for i := range w.slots {
		p := w.slots[(s.Who+i)%len(w.slots)]
		for refused := 0; refused < 10; {
			if d := p.one(s); d.Allowed {
				refused = 0
			} else {
				refused++
			}
			if w.plan.Thin || w.plan.Real {
				break
			}
		}
	}
}

const (
	// first is how long shares take to be in use: a new table lends nothing for 65 s. The poll that
	// makes it may come a period of 3 s after the start, because the first refresh may leave before
	// the policy is added, and another period goes by until the poll that brings a fraction.
	first = 72 * second

	// again is how long they take whatever was before: what a killed process held is lent after 65
	// s.
	again = 80 * second
)

// standing reports whether a policy has standing shares, and the plan can wait for them.
func (p *Plan) standing() bool {
	return !p.Real && slices.ContainsFunc(p.Policies, func(x tiered.Policy) bool { return x.Standing > 0 })
}

// crowded reports whether there may have been too many processes for the shares of a policy in one
// of them, so that it has whole limits until there are half as many. One that crashed counts for a
// while beside the one after it.
func (w *player) crowded(which int) bool {
	x := w.plan.Policies[which]
	return slices.ContainsFunc(w.slots, func(p *process) bool {
		l, ok := p.group.Limiter(x.Name)
		if !ok {
			return false
		}
		least := burst(l.Policy().Limit)
		for _, other := range p.rules[which] {
			if other != (tiered.Limit{}) && !free(other) {
				least = min(least, burst(other))
			}
		}
		return float64(least)*x.Standing < float64(2*(len(w.slots)+1))
	})
}

// checkShares checks that all standing shares are in use after a quiet time.
func (w *player) checkShares(quiet time.Duration) {
	if quiet < first || !w.plan.standing() {
		return
	}
	sum := 0.0
	for _, p := range w.slots {
		sum += p.group.Stats().Standing.Fraction
		w.mu.Lock()
		for i, x := range w.plan.Policies {
			if x.Standing > 0 && !p.agreed[x.Name] && !w.crowded(i) {
				w.fault("shares", "process %d does not use those of policy %s after %v", p.slot, x.Name, quiet)
			}
		}
		w.mu.Unlock()
	}
	if sum < 0.99 {
		w.faultf("shares", "the processes have %v of the standing shares after %v", sum, quiet)
	}
}
