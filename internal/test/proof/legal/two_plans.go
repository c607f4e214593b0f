package legal

import (
	"fmt"
	"maps"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// forTwoPlans reports whether nothing in a plan is disturbed: then it is known what limits are in force.
func (d *drawer) forTwoPlans(p *Plan) bool { return p.Class == Calm }

// twoPlans draws a stream whose requests carry the key's limit or another one.
func (d *drawer) twoPlans(p *Plan) []Step {
	which := d.IntN(len(p.Policies))
	x := p.Policies[which]
	if x.Algorithm != tiered.TokenBucket || len(x.Also) > 0 || x.Standing != tiered.StandingOff {
		return nil
	}
	other := d.another(x)
	if other == tiered.Unlimited() || other == tiered.Blocked() {
		return nil
	}
	scene := []Step{{
		Verb: Stream, Who: d.IntN(p.Processes), Which: which, Key: d.IntN(keys), N: 20 + d.IntN(100), Limit: other,
		Pause: pick(d, ms, 10*ms, 40*ms, 300*ms), After: pick(d, 0, 20*ms, second, 12*second),
	}}
	p.name(d, which, other)
	return scene
}

// name makes a limit that requests carry that of a plan of the policy, often if it can. Then they carry the plan's name.
func (p *Plan) name(d *drawer, which int, limit tiered.Limit) {
	with := p.Policies[which]
	with.Plans = maps.Clone(with.Plans)
	if with.Plans == nil {
		with.Plans = map[string]tiered.Limit{}
	}
	with.Plans[fmt.Sprint("plan", len(with.Plans))] = limit
	if !d.one(3) && p.stays(which, with) {
		p.Policies[which] = with
	}
}

// stays reports whether a policy is valid, alone and with each limit that the steps give it.
func (p *Plan) stays(which int, x tiered.Policy) bool {
	ok := !p.Plans[which] && valid(x)
	for _, s := range p.Steps {
		if next := x; ok && s.Which == which && (s.Verb == Change || s.Verb == Restart) && s.Limit != (tiered.Limit{}) {
			next.Limit = s.Limit
			ok = valid(next)
		}
	}
	return ok
}

// carry returns a use that goes by a limit: by the name of the plan that has it, if there is one.
func carry(l *tiered.Limiter, key string, cost int64, limit tiered.Limit) tiered.Use {
	x, u := l.Policy(), l.For(key).N(cost)
	for name, of := range x.Plans {
		if of == limit {
			return u.WithPlan(name)
		}
	}
	if len(x.Plans) > 0 && limit == x.Limit {
		return u.WithPlan("")
	}
	return u.WithLimit(limit)
}

// twoPlans is a stream whose requests carry the key's limit and another one by turns, as while a token is replaced.
func (p *process) twoPlans(lane time.Duration, s *Step) {
	const beside = 1000 // slots of limits that are in force beside those of the processes
	w, b := p.player, p.player.histories[s.Which][s.Key]
	w.mu.Lock()
	own := p.limit(s.Which, s.Key)
	w.mu.Unlock()
	if own == tiered.Unlimited() || own == tiered.Blocked() {
		return
	}
	w.enter(lane)
	w.mu.Lock()
	b.inForce(beside+p.slot, w.now(), s.Limit)
	w.mu.Unlock()
	for i := range s.N {
		limit := own
		if i%2 == 1 || s.N%3 == 0 && i > s.N/2 {
			limit = s.Limit
		}
		p.ask(lane, s.Which, s.Key, 1, false, limit)
		time.Sleep(s.Pause)
	}
	p.ask(lane, s.Which, s.Key, 1, false, own)
	w.mu.Lock()
	b.noMore(beside+p.slot, w.now())
	w.mu.Unlock()
}

// noMore records that a slot has no limit any more.
func (b *history) noMore(slot int, now time.Duration) {
	if i, ok := b.open[slot]; ok {
		b.terms[i].closed = now
		delete(b.open, slot)
	}
}

// uses reports whether a call of a token bucket uses the burst or the rate of a term: a key whose requests carry different
// limits may have the one of this and the other of that.
func (b *history) uses(t *term, c *lua.Call) bool {
	return b.by(t, c) || c.Cap == burst(t.Limit) || c.Tokens == t.Tokens && c.Period == t.Per.Microseconds()
}
