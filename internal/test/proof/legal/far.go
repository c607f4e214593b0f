package legal

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// forFar gives half of the plans an ordinary policy that is leased.
func (d *drawer) forFar(p *Plan) bool {
	if p.Class == Calm {
		return false
	}
	if d.one(2) {
		p.only(Rough, tiered.Policy{
			Algorithm: pick(d, tiered.TokenBucket, tiered.FixedWindow, tiered.SlidingWindow), FailMode: tiered.FailMode(d.IntN(3)),
			Limit: tiered.Limit{Tokens: pick(d, int64(1000), 10_000), Per: pick(d, second, time.Minute, time.Minute, time.Hour)},
		})
	}
	return true
}

// far draws a store that answers late: after more than Timeout and in less than a second, and up to twice as late at one time
// as at another. So it answers many calls that were given up.
func (d *drawer) far(p *Plan) []Step {
	who, which, key := d.IntN(p.Processes), d.IntN(len(p.Policies)), d.IntN(keys)
	scene := []Step{
		{Verb: Far, After: pick(d, 0, second, 20*second), Pause: pick(d, 15*ms, 30*ms, 60*ms, 120*ms, 220*ms)},
		{Verb: Steady, Who: who, Which: which, Key: key, N: 5 + d.IntN(16)},
	}
	if d.one(2) {
		scene = append(scene, Step{Verb: Well})
	}
	return scene
}

// steady asks for a key N times a second, for less than it has. If the store only answers late, then after a while it decides
// nearly all: leases are there in time.
func (p *process) steady(s *Step) {
	const (
		ready  = 14 * second
		length = 8 * second
		least  = 0.8
	)
	w, x := p.player, p.player.plan.Policies[s.Which]
	if w.plan.Thin || w.plan.Real {
		return
	}
	start, asked, decided := w.now(), 0, 0
	for w.now()-start < ready+length {
		d := p.ask(0, s.Which, s.Key, 1, false, tiered.Limit{})
		if w.now()-start > ready {
			if asked++; d.Tier != tiered.Failover {
				decided++
			}
		}
		time.Sleep(second / time.Duration(s.N))
	}
	n, _ := p.wire.state()
	onlyFar := n == network{slow: n.far, far: n.far}
	// A window that ends within a second or two is over before a lease that was asked for in it is there.
	leased := len(x.Also) == 0 && x.Lease == (tiered.Lease{}) && x.Algorithm != tiered.SlidingLog &&
		(x.Algorithm == tiered.TokenBucket && burst(x.Limit) >= 1000 || x.Algorithm != tiered.TokenBucket && x.Limit.Per >= time.Minute)
	b, used := w.histories[s.Which][s.Key], int64(0)
	w.mu.Lock()
	for _, x := range b.spent {
		used += x.n
	}
	// Who asked for much at once is thought to do so again, for some calls: a lease would hold few such requests.
	cheap := b.dearest <= 10
	little := x.Limit.Tokens >= 1000 && used < x.Limit.Tokens*3/4 && len(b.open) == len(w.slots) && len(b.terms) == len(w.slots)
	w.mu.Unlock()
	if onlyFar && leased && little && cheap && float64(decided) < least*float64(asked) {
		w.faultf("recovery", "policy %d, key %d: Redis decided %d of %d requests, and it answers, after %v to %v", s.Which, s.Key, decided,
			asked, 2*n.far, 4*n.far)
	}
}
