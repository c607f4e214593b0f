package legal

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// pauses draws a pause of the store, which is asked before, meanwhile and afterwards.
func (d *drawer) pauses(p *Plan) []Step {
	return []Step{{
		Verb: Pause, Who: d.IntN(p.Processes), Which: d.IntN(len(p.Policies)), Key: d.IntN(keys),
		N: 1 + d.IntN(20), Pause: pick(d, 15*ms, 40*ms, 70*ms, 95*ms, 120*ms, 150*ms),
	}}
}

// pause has the store stand still amid requests that come N ms after each other. When it goes on,
// it decides again at once, unless a breaker has opened.
func (p *process) pause(s *Step) {
	const (
		settle = 10 * second // what was disturbed before is over by then
		soon   = 5 * ms
	)
	w := p.player
	if w.plan.Thin || w.plan.Real || w.withoutNode() {
		return
	}
	w.disturb(func(n *network) { *n = network{} })
	for range settle / second {
		p.one(s)
		time.Sleep(second)
	}
	well, opened := p.breakers()
	end := w.now() + s.Pause
	w.still.Store(int64(end))
	for w.now() < end+500*ms {
		began := w.now()
		d := p.one(s)
		if _, again := p.breakers(); well && again == opened && d.Tier == tiered.Failover && began > end+soon+3*w.plan.Trip {
			w.faultf("recovery", "policy %d, key %d: %v, and the store went on %v before", s.Which, s.Key, d.Reason, began-end)
		}
		time.Sleep(time.Duration(s.N) * ms)
	}
}

// breakers reports whether all breakers are closed, and how often one has opened.
func (p *process) breakers() (closed bool, opened int64) {
	closed = true
	for _, n := range p.group.Stats().Nodes {
		closed, opened = closed && n.Outages.Breaker == "closed", opened+n.Outages.Count
	}
	return closed, opened
}
