package engine

import (
	"log/slog"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// What a decision goes by while a node does not answer. The fail mode itself is chosen in
// local/ask.go.

// unhealthy returns the node that b is sent to if its breaker is not closed, and otherwise nil. It
// only reads the breaker's state. A sender asks the breaker for permission just before it sends
// something.
func (b *Bucket) unhealthy() *dispatch.Node {
	n := b.node.Load()
	if n == nil {
		n = b.findNode()
	}
	if n == nil || n.State() == failover.Closed {
		return nil
	}
	return n
}

// findNode determines the node of a bucket that was never sent, if some node is unhealthy.
// Otherwise a request for it would wait for a sender, only to learn that nothing is sent to that
// node. While all nodes are healthy it returns nil.
func (b *Bucket) findNode() *dispatch.Node {
	g := b.Limiter().Group
	if g.Dispatch.Unhealthy() == 0 {
		return nil
	}
	n := g.Dispatch.Node(g.Store.Node(b.name()))
	b.setNode(n)
	return n
}

// down reports whether Redis is not to be asked about the part: its node is unhealthy, or the Group
// is closed.
func (p *Part) down() bool { return p.Limiter.Group.Closed.Load() || p.bucket.unhealthy() != nil }

// leaveToFailMode leaves the part to the fail mode, and sends its node a probe if one is due.
func (p *Part) leaveToFailMode() {
	p.state = leftToFailMode
	if p.Limiter.Group.Closed.Load() {
		return
	}
	if n := p.bucket.unhealthy(); n != nil && n.ProbeDue(p.now) {
		p.bucket.apply(p.now, p.bucket.Probe())
	}
}

// fallBack decides over n tokens by the fail mode. It reports false if the bucket was evicted, or
// its policy has changed.
func (b *Bucket) fallBack(now time.Duration, n int64) (o local.Outcome, ok bool) {
	g := b.Limiter().Group
	if o = b.ByFailMode(now, n, g.fleetOf(b)); o.Reason == local.Fallback {
		g.warnIfFleetUnknown()
	}
	if o.Tier == local.Failover {
		g.warnIfUnheard()
	}
	if o.Allowed() && b.TellsLater(b.unhealthy() != nil) {
		g.planToTell(now, b)
	}
	return o, o.Reason != local.Outdated
}

// fleetOf returns how many processes share b's limit, at least 1. If that is unknown, it returns
// Options.Processes. The node of a bucket is unknown after Close. Then the node with the most
// processes counts.
func (g *Group) fleetOf(b *Bucket) int64 {
	place := b.Limiter().place()
	if n := b.node.Load(); n != nil {
		return n.Processes(place)
	}
	return g.Dispatch.MostProcesses(place)
}

// warnIfFleetUnknown warns, once, if a fallback decides while the number of processes is unknown.
// That is dangerous, because each process then admits the whole limit.
func (g *Group) warnIfFleetUnknown() {
	if g.FleetKnown.Load() {
		return
	}
	g.warnFleetOnce.Do(func() {
		g.Journal.Line(slog.LevelWarn, "the number of processes is not known: each admits the whole limit alone "+
			"while redis does not answer, so set Options.Processes")
	})
}

// warnIfUnheard warns, once, if a fail mode decides before Redis has answered this process at all.
// That need not be an outage: it takes five round trips to connect and to ask, which may be longer
// than Budget, and a process that asks once and then ends never connects.
func (g *Group) warnIfUnheard() {
	if g.Heard.Load() || g.Closed.Load() {
		return
	}
	g.warnHeardOnce.Do(func() {
		g.Journal.Line(slog.LevelWarn, "redis has not answered this process yet: the fail mode decides, so "+
			"call Group.Ping before the first decision")
	})
}

// fallBack lets the fail mode decide.
func (p *Part) fallBack() {
	for {
		p.setSource(p.bucket, failMode)
		stamp := p.bucket.Hot().LastStamp() // of the lease, which is spent first
		o, ok := p.bucket.fallBack(p.now, p.Cost)
		if !ok {
			if p.findAgain(failMode) {
				return
			}
			continue
		}
		if o.Reason == local.Granted { // of a lease, which may have come after its generation was read: they go back to Redis
			p.setSource(p.bucket, redis)
			p.stamp = stamp
		}
		p.decided(p.bucket.share().tell(o, p.now, p.Cost), p.bucket)
		return
	}
}
