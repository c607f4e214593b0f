package legal

import (
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// windowed returns the first policy with a window that is leased, or -1.
func (p *Plan) windowed() int {
	return slices.IndexFunc(p.Policies, func(x tiered.Policy) bool {
		return x.Algorithm == tiered.FixedWindow || x.Algorithm == tiered.SlidingWindow
	})
}

// forHandovers gives half of the plans an ordinary policy.
func (d *drawer) forHandovers(p *Plan) bool {
	if p.Class != Calm {
		return false
	}
	if d.one(2) {
		p.only(Calm, tiered.Policy{
			Algorithm: pick(d, tiered.FixedWindow, tiered.SlidingWindow),
			Limit:     tiered.Limit{Tokens: pick(d, int64(100), 400, 2000), Per: pick(d, 10*second, time.Minute, time.Hour)},
		})
		p.Processes, p.Warm = max(p.Processes, 2), pick(d, 0, 10*second)
	}
	return p.windowed() >= 0 && p.Processes > 1
}

// handover draws a move of all requests of a key from one process to another, as after a client has connected again.
func (d *drawer) handover(p *Plan) []Step {
	which := p.windowed()
	return []Step{{
		Verb: Handover, Who: d.IntN(p.Processes), Which: which, Key: d.IntN(keys), N: d.IntN(100),
		After: pick(d, 0, min(p.Policies[which].Limit.Per/2, time.Minute)),
	}}
}

// handover sends most of what a key may have through one process, as fast as it can, and what is left through another. The
// first process holds some of it in a lease. The second may be refused until that lease is over, and no longer.
func (p *process) handover(s *Step) {
	w, x, b := p.player, p.player.plan.Policies[s.Which], p.player.histories[s.Which][s.Key]
	next := w.slots[(s.Who+1)%len(w.slots)]
	w.streams.Wait()
	w.mu.Lock()
	limit := p.limit(s.Which, s.Key)
	same := limit == next.limit(s.Which, s.Key) && limit == x.Limit && len(b.terms) > 0
	for _, t := range b.terms {
		same = same && t.Limit == x.Limit
	}
	w.mu.Unlock()
	if !same || limit.Tokens > 5000 || len(x.Also) > 0 || w.moved || w.withoutNode() || w.plan.Real || w.plan.Thin {
		return
	}
	for range limit.Tokens * int64(50+s.N/2) / 100 {
		p.ask(0, s.Which, s.Key, 1, false, tiered.Limit{})
	}
	// A lease that is idle is prolonged once, and then given back. The rest is for the call that asks again.
	patience := b.life + b.life/2 + 300*ms
	refused := time.Duration(-1)
	for start := w.now(); w.now()-start < 4*b.life && w.now()-start < 2*time.Minute; time.Sleep(20 * ms) {
		w.mu.Lock()
		used := b.mayCount(w.now(), limit)
		w.mu.Unlock()
		if d := next.ask(0, s.Which, s.Key, 1, false, tiered.Limit{}); d.Allowed || used >= limit.Tokens {
			refused = -1
		} else if refused < 0 {
			refused = w.now()
		}
		if refused >= 0 && w.now()-refused > patience {
			w.faultf("under", "policy %d, key %d is refused for %v while %d of %d are used", s.Which, s.Key, w.now()-refused, used,
				limit.Tokens)
			return
		}
	}
}

// mayCount returns the most tokens that a window may count now: all that was admitted or charged in its length.
func (b *history) mayCount(now time.Duration, l tiered.Limit) (used int64) {
	span := l.Per
	if b.rules.Algorithm == tiered.SlidingWindow {
		span = after(span, 2*precision(l))
	}
	for _, x := range b.spent {
		if x.n > 0 && after(x.at, span) >= now {
			used += x.n
		}
	}
	return used
}
