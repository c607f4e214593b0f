package legal

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// forAmends gives half of the plans an ordinary policy.
func (d *drawer) forAmends(p *Plan) bool {
	if p.Class != Calm {
		return false
	}
	if d.one(2) {
		x := tiered.Policy{
			Algorithm: pick(d, tiered.FixedWindow, tiered.SlidingWindow, tiered.SlidingLog), Name: "p0",
			Limit: tiered.Limit{Tokens: pick(d, int64(100), 400, 2000), Per: pick(d, 10*second, time.Minute, time.Hour)},
		}
		leased := x
		if leased.Lease = d.lease(); valid(leased) {
			x = leased
		}
		p.only(Calm, x)
	}
	return true
}

// amend draws a reservation that is given back, and a charge of the same key that Redis hears of in the same call.
func (d *drawer) amend(p *Plan) []Step {
	which := d.IntN(len(p.Policies))
	return []Step{{
		Verb: Amend, Who: d.IntN(p.Processes), Which: which, Key: d.IntN(keys), N: d.IntN(100), Pause: pick(d, 0, ms, 40*ms),
		After: pick(d, 0, 20*ms, min(p.Policies[which].Limit.Per/2, time.Minute)),
	}}
}

// amend takes a part of what a key may have, gives it back, and charges a part. What was given back makes room for that, so the window
// counts the charge in full or is full. Either way it does not admit what the charge leaves, and a token more.
func (p *process) amend(s *Step) {
	w, x, b := p.player, p.player.plan.Policies[s.Which], p.player.histories[s.Which][s.Key]
	w.streams.Wait()
	w.mu.Lock()
	limit := p.limit(s.Which, s.Key)
	moved := w.moved || len(b.moves) > 0
	w.mu.Unlock()
	if x.Algorithm == tiered.TokenBucket || len(x.Also) > 0 || moved || w.plan.Real || w.withoutNode() ||
		limit == tiered.Unlimited() || limit == tiered.Blocked() || limit.Tokens < 10 || limit.Tokens > 1<<20 || limit.Per < second {
		return
	}
	n := limit.Tokens * int64(1+s.N%3) / 4
	d := p.ask(0, s.Which, s.Key, n, true, tiered.Limit{})
	if d.Tier == tiered.Failover || !d.Allowed || x.Algorithm == tiered.FixedWindow && d.ResetAfter < second/2 {
		return
	}
	w.settle(&Step{Verb: Cancel})
	time.Sleep(s.Pause)
	charge := limit.Tokens * int64(4+s.N/3%4) / 8
	p.charge(s, charge, false)
	time.Sleep(200 * ms)
	if d := p.ask(0, s.Which, s.Key, limit.Tokens-charge+1, false, tiered.Limit{}); d.Allowed && d.Tier != tiered.Failover {
		w.faultf("over", "policy %d, key %d: %d of %d were charged beside %d that came back, and %d more are admitted",
			s.Which, s.Key, charge, limit.Tokens, n, d.Cost)
	}
}
