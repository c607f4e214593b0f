package adversary

import (
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// This file changes limits while leases are out.

// change gives a process the limits of process n, as a deploy does. The bound is that of the largest limits in use.
func (p *process) change(n int) {
	w := p.world
	p.variant = n
	p.policy = w.scope.policy(n, w.deployed, w.uniform)
	w.policies[p.number] = p.policy
	for _, b := range append([]*bucket(nil), p.buckets...) {
		was := b.Policy()
		_, e, _ := b.SetPolicy(p.now(), nil, p.policy)
		b.outgrown(was)
		b.shared = nil
		b.apply(e)
		b.collect(nil)
	}
}

// outgrown checks that no token is left that was leased under a larger limit.
func (b *bucket) outgrown(was *local.Policy) {
	w := b.process.world
	before, now := &was.Call, &b.Policy().Call
	if held, _ := b.Peek(b.process.now()); held > 0 && (now.Cap < before.Cap || w.rate(now) < w.rate(before)) {
		w.Failf("%s holds %d tokens of a limit that was lowered", b.process.id, held)
	}
}

// rate returns that of a call's first limit, tokens per µs.
func (w *World) rate(c *lua.Call) float64 {
	switch w.scope.Algorithm {
	case lua.SlidingWindow:
		return float64(c.Cap) / float64((c.Span-1)*c.Period)
	case lua.FixedWindow:
		return float64(c.Cap) / float64(c.Period)
	default:
		return float64(c.Tokens) / float64(c.Period)
	}
}

// deploy gives everybody limits that were not there before. They hold from now on. What processes hold, are being
// granted, or may still cancel was not counted by them.
func (w *World) deploy() bool {
	if w.deployed || len(w.scope.Later) == 0 {
		return false
	}
	w.deployed = true
	known := len(w.limits)
	for i := range w.scope.Bursts {
		w.addLimits(w.scope.limits(i, true))
	}
	cost := int64(0)
	for _, p := range w.processes {
		cost += p.holds()
		for _, t := range p.late {
			cost += t.n
		}
		for _, b := range p.buckets {
			for _, t := range b.takings {
				if t.from == local.FromRedis { // holds has the others
					cost += t.n
				}
			}
			for _, part := range b.refunding {
				cost += part.n
			}
		}
		p.change(p.variant)
	}
	for _, r := range w.state.Records { // their settlement takes them off limits that did not count them
		cost += r.Out
	}
	for _, r := range w.requests {
		cost += r.call.Want + r.call.Refund
	}
	for _, l := range w.limits[known:] {
		l.from, l.conceded = len(w.admissions.events), cost
	}
	w.Logf("conceded in the new limits: %d", cost)
	return true
}
