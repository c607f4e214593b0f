package tiered

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// Stats are a Group's figures since it was made.
type Stats struct {
	Keys      int    // kept in the process now
	Leaving   int    // evicted, but still giving back what they hold
	Evictions uint64 // keys that MaxKeys pushed out

	TraceDropped int64 // events that the hooks did not keep up with

	Policies map[string]PolicyStats // by name
	Nodes    map[string]NodeStats   // by node
}

// PolicyStats are one policy's, in tokens. Granted = Spent + Returned + Burnt + Held.
type PolicyStats struct {
	Granted     int64 // by Redis
	Spent       int64 // admitted
	Returned    int64 // given back
	Burnt       int64 // ended unspent, or lost on the way back
	Held        int64 // in hand now
	Limited     int64 // asked for and refused by the limit
	Unavailable int64 // asked for while Redis did not answer, and refused
	Shared      int64 // admitted by this process' share, while Redis did not answer
	Open        int64 // admitted by fail-open, while Redis did not answer
	Settled     int64 // of Shared and Open, reported to Redis since
	Poisoned    int64 // calls refused because of their key alone: another type, not ours, or damaged
}

// NodeStats are one Redis node's.
type NodeStats struct {
	Calls        int64         // sent; several of them share a round trip
	Failures     int64         // calls without an answer: they may have been executed
	LateReplies  int64         // answers that came after Timeout
	LateCalls    int64         // calls that reached Redis after their deadline, and did nothing
	StaleReplies int64         // calls that a newer one had overtaken
	StateLosses  int64         // replies that showed that Redis had lost a lease's bucket, or the last writes to it
	RoundTrip    time.Duration // 99th percentile of late; 2 ms before there are 16
	Processes    int64         // that share the limits
	Breaker      string        // "closed", "open" or "probing"
}

// Stats reports the Group's figures. It walks all keys: call it every few seconds, not per request.
func (g *Group) Stats() Stats {
	s := Stats{Policies: make(map[string]PolicyStats), Nodes: make(map[string]NodeStats)}
	s.Keys, s.Leaving, s.Evictions = g.cache.Counts()
	s.TraceDropped = g.trace.dropped.Load()

	g.limiters.mu.RLock()
	all := append([]*Limiter(nil), g.limiters.all...)
	g.limiters.mu.RUnlock()
	sums := make([]local.Stats, len(all))
	poor := make([]int64, len(all))
	for i, l := range all {
		l.mu.Lock()
		sums[i], poor[i] = l.past, l.poor
		l.mu.Unlock()
	}
	count := func(b *bucket) {
		if n := b.ID().Policy; n < len(sums) {
			sums[n].Add(b.Stats())
		}
	}
	g.cache.All(count)
	g.after.All(count)
	for i, l := range all {
		t := sums[i]
		s.Policies[l.policy.Name] = PolicyStats{
			Granted: t.Granted, Spent: t.Spent, Returned: t.Returned, Burnt: t.Burnt, Held: t.Held,
			Limited: t.Refused, Unavailable: t.Failed, Shared: t.Shared, Open: t.Opened, Settled: t.Settled,
			Poisoned: poor[i],
		}
	}
	for _, n := range g.allNodes() {
		s.Nodes[string(n.id)] = NodeStats{
			Calls: n.calls.Load(), Failures: n.failures.Load(), LateReplies: n.lateReplies.Load(),
			LateCalls: n.lateCalls.Load(), StaleReplies: n.staleReplies.Load(), StateLosses: n.stateLosses.Load(),
			RoundTrip: n.clock.trip(), Processes: n.fleet.size(), Breaker: n.guard.State().String(),
		}
	}
	return s
}
