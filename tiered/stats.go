package tiered

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Stats are a Group's figures since it was made.
type Stats struct {
	Keys      int    // kept in the process now
	Leaving   int    // evicted, but still giving back what they hold
	Evictions uint64 // keys that MaxKeys pushed out

	Standstills  int64 // times that this machine stood still, or its clock was set forward, and all leases were given up
	TraceDropped int64 // events that the hooks did not keep up with
	TracePanics  int64 // events whose hook panicked

	Format string // of the buckets in Redis: the end of their keys' names
	Script string // that decides in Redis: its SHA-1, 40 hex digits

	Recent []Event // state changes and faults: the last 64, oldest first

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
	ShareSpent  int64 // asked for while Redis did not answer, and refused because the share was used up
	Unavailable int64 // asked for while Redis did not answer, and refused by fail-closed
	Shared      int64 // admitted by this process' share, while Redis did not answer
	Open        int64 // admitted by fail-open, while Redis did not answer
	Settled     int64 // of Shared and Open, reported to Redis since
	Forgiven    int64 // of Shared and Open, given up: Redis refused their key's reports three times, as in Poisoned
	Lost        int64 // asked for by calls without an answer: so many at most were granted to nobody
	Poisoned    int64 // calls refused because of their key alone: another type, not ours, or damaged

	Unlimited    int64 // admitted by Unlimited: not in Granted and Spent
	Blocked      int64 // asked for and refused by Blocked: not in Limited
	Shadowed     int64 // of all that was refused, admitted because the policy is tried out
	PerKeyFaults int64 // keys for which PerKey panicked or returned a limit that is not valid

	// Of [Limiter.WaitN] and [Uses.Wait], in calls. Who gets its tokens at once did not wait; who asks again is not
	// Limited.
	Waiting     int64         // now
	Waited      int64         // waited, and got their tokens
	GaveUp      int64         // waited for nothing: called off or out of time; or left at once, because they would be
	WaitTime    time.Duration // how long both waited, all together
	LongestWait time.Duration // how long one of them did, at most

	Direct bool // nothing is leased: each token is taken from Redis, by Lease.Size or because the algorithm wants it

	Top []RefusedKey // the keys that were refused most, at most 20, the most refused first
}

// NodeStats are one Redis node's.
type NodeStats struct {
	Calls    int64 // sent; several of them share a round trip
	Failures int64 // calls without an answer: they may have been executed

	Saturated     int64 // of Failures: no connection was free in this process' own pool
	CannotServe   int64 // of Failures: Redis said that it cannot (LOADING, READONLY, OOM, …)
	Misconfigured int64 // of Failures: Redis refused this user (NOAUTH, WRONGPASS, NOPERM): it does not heal by itself

	Overruns     int64         // decisions that got no answer within Budget: the fail mode decided
	LateReplies  int64         // answers that came after Timeout
	LateCalls    int64         // calls that reached Redis after their deadline, and did nothing
	StaleReplies int64         // calls that a newer one had overtaken, and that did nothing
	StateLosses  int64         // replies that showed that Redis had lost a lease's bucket, or the last writes to it
	ClockSteps   int64         // times that the node's clock was set, by 50 ms or more, as seen from here
	ClockBack    int64         // buckets that believed a step back of more than a second
	RoundTrip    time.Duration // 99th percentile of late; 2 ms before there are 16

	Processes int64 // that share the limits
	Absences  int64 // times that the node did not note that this process is here

	Breaker    string        // "closed", "open" or "probing"
	Cause      string        // of its last opening: "unreachable", "saturated", "cannot serve", "misconfigured"; "" for never
	Outages    int64         // times that it opened
	OutageTime time.Duration // how long it was not closed, all together
	Settled    int64         // tokens admitted without Redis and reported to it
}

// Stats reports the Group's figures. It walks all keys: call it every few seconds, not per request.
func (g *Group) Stats() Stats {
	s := Stats{Policies: make(map[string]PolicyStats), Nodes: make(map[string]NodeStats)}
	s.Keys, s.Leaving, s.Evictions = g.cache.Counts()
	s.Standstills, s.TraceDropped, s.TracePanics = g.standstills.Load(), g.trace.dropped.Load(), g.trace.panics.Load()
	s.Format, s.Script = lua.TokenBucket.Mark(), lua.TokenBucket.Script().SHA
	s.Recent = g.trace.recent.list()

	g.limiters.mu.RLock()
	all := append([]*Limiter(nil), g.limiters.all...)
	g.limiters.mu.RUnlock()
	now := g.now()
	sums := make([]local.Stats, len(all))
	tops := make([]top, len(all))
	others := make([]PolicyStats, len(all)) // what is not counted by key
	for i, l := range all {
		l.mu.Lock()
		sums[i] = l.past
		others[i] = PolicyStats{
			Direct: l.terms.Load().fresh.NoLease, Poisoned: l.poor, Lost: l.lost, Forgiven: l.forgiven,
			Unlimited: l.free.Load(), Shadowed: l.shadowed.Load(), PerKeyFaults: l.misses.Load(),
		}
		tops[i].past = l.gone.clone()
		l.mu.Unlock()
	}
	count := func(b *bucket) {
		if n := b.limiter().whole.number; n < len(sums) {
			s := b.counted(b.Stats())
			sums[n].Add(s)
			tops[n].see(now, b, s)
		}
	}
	g.cache.All(count)
	g.after.All(count)
	for i, l := range all {
		if l.whole != l { // its figures are the whole's
			continue
		}
		t := sums[i]
		p := others[i]
		p.Granted, p.Spent, p.Returned, p.Burnt, p.Held = t.Granted, t.Spent, t.Returned, t.Burnt, t.Held
		p.ShareSpent, p.Unavailable = t.ShareSpent, t.Failed
		p.Limited = max(t.Refused-t.ShareSpent, 0) // who decided before the mode was changed may count a moment later
		p.Blocked = t.Blocked
		p.Shared, p.Open, p.Settled = t.Shared, t.Opened, t.Settled
		l.waits.tell(&p)
		p.Top = tops[i].list()
		if l.shards != nil {
			for i := range p.Top {
				p.Top[i].RetryAfter = l.retryOf(now, p.Top[i].Key)
			}
		}
		s.Policies[l.name] = p
	}
	for _, n := range g.allNodes() {
		s.Nodes[string(n.id)] = n.stats()
	}
	return s
}

func (n *node) stats() NodeStats {
	out, cause := n.outage()
	return NodeStats{
		Calls: n.calls.Load(), Failures: n.failures(),
		Saturated: n.failed[failover.Saturated].Load(), CannotServe: n.failed[failover.CannotServe].Load(),
		Misconfigured: n.failed[failover.Misconfigured].Load(),
		Overruns:      n.overruns.Load(), LateReplies: n.lateReplies.Load(), LateCalls: n.lateCalls.Load(),
		StaleReplies: n.staleReplies.Load(), StateLosses: n.stateLosses.Load(),
		ClockSteps: n.steps.Load(), ClockBack: n.believed.Load(), RoundTrip: n.clock.trip(),
		Processes: n.fleet.size(), Absences: n.absent.Load(),
		Breaker: n.guard.State().String(), Cause: cause, Outages: n.outages.Load(), OutageTime: out,
		Settled: n.reported.Load(),
	}
}
