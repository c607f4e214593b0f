package tiered

import (
	"math"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/histogram"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Stats are the figures of a Group since its creation.
type Stats struct {
	Keys      int    // in the process now
	Leaving   int    // evicted, but still returning what they hold
	Evictions uint64 // keys evicted because of MaxKeys

	Standstills  int64 // times that all leases were dropped: this machine stood still, or its clock was set forward
	TraceDropped int64 // events dropped because the hooks were too slow
	TracePanics  int64 // events whose hook panicked

	Format string // of the buckets in Redis: the last part of their keys' names
	Script string // SHA-1 of the script that decides in Redis, 40 hex digits

	Reloads ReloadStats

	Recent []Event // state changes and faults: the last 64, oldest first

	Standing StandingStats

	Policies map[string]PolicyStats // by name
	Nodes    map[string]NodeStats   // by node
}

// ReloadStats count reloads of the configuration: see [Group.CountReload].
type ReloadStats struct {
	Applied int64 // the Group has the new configuration
	Failed  int64 // something was wrong, and the configuration of before stayed
	Err     error // what was wrong with the last one, nil if nothing was
}

// StandingStats are about the standing shares of this process, of all policies that have some.
type StandingStats struct {
	Fraction   float64       // part of all standing shares that this process leases from Redis: 0 … 1
	Left       time.Duration // how long that lease still lasts; it is renewed every 3 s
	Members    int64         // processes that have a part of them, as last seen
	Quarantine bool          // the table of shares in Redis is less than 65 s old: no process gets more than it had before
}

// PolicyStats are the figures of one policy: in tokens, unless the field says something else. Granted = Spent +
// Returned + Burnt + Held.
type PolicyStats struct {
	Granted       int64 // by Redis
	Spent         int64 // admitted with tokens that Redis granted, or charged to them afterwards
	Returned      int64 // returned unspent
	Burnt         int64 // expired unspent, or lost during the return
	Held          int64 // held now
	Refunded      int64 // that requests gave back: they were Spent or Standing, and are no longer in it
	Limited       int64 // requested and refused by the limit
	FallbackSpent int64 // requested while Redis did not answer, and refused because the fallback was used up
	Unavailable   int64 // requested while Redis did not answer, and refused by fail-closed
	Fallback      int64 // admitted by this process' fallback while Redis did not answer
	Open          int64 // admitted by fail-open while Redis did not answer
	Settled       int64 // of Fallback and Open: reported to Redis since, or too old to count
	Charged       int64 // by Charge, or by Settle beyond what was reserved, and not in Spent. What is Forgiven of it is in it
	Forgiven      int64 // debt that no key pays: beyond MaxDebt, or of a key whose calls Redis rejects (Poisoned)
	Lost          int64 // requested by calls without an answer. Some or all of them may have been granted, and are lost
	Poisoned      int64 // calls that Redis rejected because of their key alone: of another type, not ours, or damaged

	Requests  Requests  // how many requests were decided, and how
	Waits     Histogram // how long requests waited for Redis; a request that was decided here is not in it
	NearLimit int64     // of Spent: while less than a fifth of the burst was left, as far as this process knew

	// Standing is admitted by standing shares. It is not in Granted and Spent. If a request gives such tokens back and
	// they go to Redis, they leave Standing and are added to Granted and to Returned.
	Standing int64
	Outside  int64 // processes that do not split the policy's limit: while there are any, no standing share is used

	Unlimited    int64 // admitted by Unlimited; not in Granted and Spent
	Blocked      int64 // requested and refused by Blocked; not in Limited
	Shadowed     int64 // of the refused ones: they were admitted after all, because of Policy.Shadow
	PerKeyFaults int64 // times that PerKey panicked or returned an invalid limit, or that a request carried one
	UnknownPlans int64 // requests with a plan that is not in Policy.Plans: Policy.Limit decided

	// Calls of [Limiter.WaitN] and [Uses.Wait]. A call that gets its tokens at once does not count as a wait. A
	// waiting call that asks again does not count as Limited.
	Waiting     int64         // now
	Waited      int64         // waited, and got their tokens
	GaveUp      int64         // ended without tokens: canceled, out of time, or refused at once as too late
	WaitTime    time.Duration // total time of Waited and GaveUp
	LongestWait time.Duration // the longest of these waits

	// Processes is the number that FailLocal divides the limit by: the largest count that a node reported in the last
	// 10 s, and at least Options.Processes. For a node that does not answer, these are the 10 s before it stopped. If
	// nodes differ, each key's fallback is computed with the count of its own node.
	Processes     int64
	OtherServices int64 // processes of another service that has a policy of this name with other limits, now
	OtherLimits   int64 // processes of this service that have other limits, now, as during a deploy

	Direct bool // nothing is leased: each token is taken from Redis, because of Lease.Size or the algorithm

	Top []RefusedKey // the most refused keys, at most 20, the most refused first
}

// RefusedKey says how many tokens of a key were refused since the Group's creation, and why. The figures are exact
// while MaxKeys keeps the key in the process. If a key is evicted, blocked or unblocked, its refusals until then are
// kept only if it is among the keys that were refused most.
type RefusedKey struct {
	Key string `json:"-"` // or its digest, if over 200 bytes; not in JSON, because it may be a secret

	Limited       int64 // by the limit, in this process or by Redis (tiers Local and Remote)
	FallbackSpent int64 // by the fallback, while Redis did not answer (tier Failover)
	Unavailable   int64 // by fail-closed, while Redis did not answer (tier Failover)
	Blocked       int64 // by a Blocked limit, of the policy or of the key
	Forgotten     int64 // upper bound of the tokens that are missing in the other figures

	// LimitNumber is the number of the limit that refused the key last: see [Decision]. It is 0 if the key has one limit,
	// or was evicted.
	LimitNumber uint8

	// RetryAfter is the time until the key may be admitted again. It is 0 if a token of it would be admitted now.
	RetryAfter time.Duration
}

// Tokens returns how many tokens were refused for all reasons.
func (k *RefusedKey) Tokens() int64 { return (*report.RefusedKey)(k).Tokens() }

// Requests counts requests by how they were decided. A request over several keys counts once for each policy that
// admitted it. If it was refused, it counts for each policy that refused it.
type Requests struct {
	Granted   int64 // admitted by the limit
	Fallback  int64 // admitted by this process' fallback while Redis did not answer
	Open      int64 // admitted by fail-open while Redis did not answer
	Unlimited int64 // admitted by Unlimited

	Limited       int64 // refused by the limit
	FallbackSpent int64 // refused because the fallback was used up, while Redis did not answer
	Unavailable   int64 // refused by fail-closed
	Blocked       int64 // refused by Blocked
	ExceedsBurst  int64 // refused: cost above the burst
	Invalid       int64 // refused: the key or the cost is not valid
	Canceled      int64 // refused: the caller's context ended

	Shadowed int64 // of the refused ones above: they were admitted after all, because of Policy.Shadow

	GrantedByRedis int64 // of Granted: Redis was asked for this request; the rest were decided in this process
	LimitedByRedis int64 // of Limited: the same
}

// Admitted returns how many were admitted. It does not count Shadowed.
func (r Requests) Admitted() int64 { return r.Granted + r.Fallback + r.Open + r.Unlimited }

// Refused returns how many were refused. It counts Shadowed too.
func (r Requests) Refused() int64 {
	return r.Limited + r.FallbackSpent + r.Unavailable + r.Blocked + r.ExceedsBurst + r.Invalid + r.Canceled
}

// Histogram counts durations in buckets. The bound doubles every four buckets, as in schema 2 of a native histogram of
// Prometheus.
type Histogram struct {
	Sum     time.Duration // of all
	Buckets []int64       // how many are in each; the last one has no bound
}

// Count returns how many durations there are.
func (h Histogram) Count() (n int64) {
	for _, b := range h.Buckets {
		n += b
	}
	return n
}

// Bound returns the longest duration that bucket i counts: 61 µs for bucket 0, 4 s for the last but one. The last
// bucket has none: Bound returns the longest Duration.
func (h Histogram) Bound(i int) time.Duration {
	if i >= len(h.Buckets)-1 {
		return math.MaxInt64
	}
	return histogram.Bound(i)
}

// NodeStats are the figures of one Redis node.
type NodeStats struct {
	Calls    int64 // sent; several share a round trip
	Failures int64 // calls that were not served: without an answer (these may have been executed), or answered by an error

	Saturated     int64 // of Failures: this process' own pool had no free connection
	CannotServe   int64 // of Failures: Redis said that it cannot serve (LOADING, READONLY, OOM, …)
	Misconfigured int64 // of Failures: Redis refused this user (NOAUTH, WRONGPASS, NOPERM); needs a new setting

	Overruns     int64         // decisions without an answer within Budget: the fail mode decided
	LateReplies  int64         // answers after Timeout
	LateCalls    int64         // calls that reached Redis after their deadline and did nothing
	StaleReplies int64         // calls that did nothing because a newer call had overtaken them
	StateLosses  int64         // replies that showed that Redis had lost a bucket in use, or the last writes to it
	ClockSteps   int64         // times that the node's clock was set by 50 ms or more, as seen from here
	ClockBack    int64         // buckets whose time was set back, because the node's clock went back by more than a second
	RoundTrip    time.Duration // 99th percentile of recent calls; until 16 were measured 2 ms, or a typical one if that is more
	RoundTrips   Histogram     // all that were answered; calls that leave together share one

	Processes int64 // that are present there, whatever their policies are
	Absences  int64 // presence reports of this process that the node did not record

	Breaker    string        // "closed", "open" or "probing"
	Cause      string        // class of the error that opened it last, see [ErrorEvent].Class; "" for never
	Outages    int64         // times that it opened when it was closed
	OutageTime time.Duration // total time in which it was not closed
	Probed     int64         // times that it let one call through, to see whether Redis answers
	Reopened   int64         // times that it opened after such a call
	Closed     int64         // times that it closed: outages that are over
	Settled    int64         // tokens admitted without Redis and reported to it
}

// Stats returns the Group's figures. It walks all keys: call it every few seconds, not per request.
func (g *Group) Stats() Stats {
	if g.isZero() {
		return Stats{}
	}
	s := Stats{Nodes: make(map[string]NodeStats)}
	s.Keys, s.Leaving, s.Evictions = g.core.Cache.Counts()
	s.Standstills, s.TraceDropped, s.TracePanics = g.core.Standstills.Load(), g.trace.calls.Dropped(), g.trace.calls.Panics()
	s.Format, s.Script = lua.TokenBucket.Mark(), lua.TokenBucket.Script().SHA
	s.Recent = g.trace.recentEvents()
	s.Standing, s.Reloads = g.standingStats(), g.reloads.stats()

	all := g.limiters.present()
	s.Policies = make(map[string]PolicyStats, len(all))
	for i, p := range g.policyStats(all) {
		s.Policies[all[i].core.Name] = p
	}
	for _, n := range g.core.Dispatch.Nodes() {
		s.Nodes[string(n.ID())] = healthOf(n).stats()
	}
	return s
}

// Stats returns the figures of this Limiter's policy, as [Group.Stats] does for all. It walks all keys of the Group to find
// those of the policy: call it every few seconds, not per request.
func (l *Limiter) Stats() PolicyStats {
	if l.isZero() {
		return PolicyStats{}
	}
	return l.group.policyStats([]*Limiter{l})[0]
}

// policyStats returns the figures of Limiters, in their order.
func (g *Group) policyStats(of []*Limiter) []PolicyStats {
	index := make(map[*engine.Limiter]int, len(of))
	now := g.core.Now()
	sums := make([]local.Stats, len(of))
	tops := make([]report.Top, len(of))
	all := make([]PolicyStats, len(of)) // at first what is not counted by key
	for i, l := range of {
		c := &l.core
		gone := c.Gone()
		index[c], sums[i], tops[i] = i, gone.Stats, gone.Refused
		l.mu.Lock()
		all[i] = PolicyStats{
			Direct: c.Settings().Initial.NoLease, Poisoned: gone.Rejected, Lost: gone.Unanswered, Forgiven: gone.Forgiven,
			Charged: c.Charged.Load(), Unlimited: c.AdmittedUnlimited.Load(), Shadowed: c.Shadowed.Load(), PerKeyFaults: c.PerKeyFaults.Load(),
			UnknownPlans: l.unknownPlans.Load(),
			Standing:     c.Standing.Total(), Outside: l.split.outsiders,
			OtherServices: l.others.services, OtherLimits: l.others.here, Processes: max(int64(g.options.Processes), 1),
		}
		l.mu.Unlock()
	}
	g.core.Each(func(b *engine.Bucket) {
		if n, ok := index[b.Limiter()]; ok {
			s := b.Stats()
			sums[n].Add(s)
			if k := tops[n].Add(engine.RefusedOf(b.Key(), s)); k != nil {
				complete(k, b, now)
			}
		}
	})
	nodes := g.core.Dispatch.Nodes()
	empty := make([]int64, histogram.Buckets) // for all histograms that are empty
	for i, l := range of {
		p, t, c := &all[i], sums[i], &l.core
		p.Granted, p.Spent, p.Returned, p.Burnt, p.Held = t.Granted, t.Spent, t.Returned, t.Burnt, t.Held
		p.FallbackSpent, p.Unavailable = t.FallbackSpent, t.Failed
		// A decision from before a change of the mode may be counted a moment later.
		p.Limited = max(t.Refused-t.FallbackSpent, 0)
		p.Blocked = t.Blocked
		p.Fallback, p.Open, p.Settled = t.Fallback, t.Opened, max(t.Settled-c.Paid.Load(), 0)
		w := c.Waits.Figures()
		p.Waiting, p.Waited, p.GaveUp, p.WaitTime, p.LongestWait = w.Waiting, w.Waited, w.GaveUp, w.Time, w.Longest
		p.NearLimit, p.Refunded = c.NearLimit.Load(), c.Refunded.Load()
		p.Waits.Sum, p.Waits.Buckets = c.Requests.Waits()
		if p.Waits.Buckets == nil {
			p.Waits.Buckets = empty
		}
		p.Requests = l.requestsOf(p)
		for _, k := range tops[i].Keys() {
			p.Top = append(p.Top, RefusedKey(k))
		}
		for _, n := range nodes {
			p.Processes = max(p.Processes, n.Processes(l.place()))
		}
	}
	return all
}

// requestsOf returns how many requests there were, by the tokens that p counts.
func (l *Limiter) requestsOf(p *PolicyStats) Requests {
	of := l.core.Requests.Of
	return Requests{
		Granted:   of(report.Granted, p.Spent+p.Standing+p.Refunded),
		Fallback:  of(report.Fallback, p.Fallback),
		Open:      of(report.Open, p.Open),
		Unlimited: of(report.Unlimited, p.Unlimited),

		Limited:       of(report.Limited, p.Limited),
		FallbackSpent: of(report.FallbackSpent, p.FallbackSpent),
		Unavailable:   of(report.Unavailable, p.Unavailable),
		Blocked:       of(report.Blocked, p.Blocked),
		ExceedsBurst:  of(report.ExceedsBurst, 0),
		Invalid:       of(report.Invalid, 0),
		Canceled:      of(report.Canceled, 0),

		Shadowed: of(report.Shadowed, 0),

		GrantedByRedis: of(report.GrantedByRedis, 0), LimitedByRedis: of(report.LimitedByRedis, 0),
	}
}

// complete adds to what b's key was refused what b knows of it now. It is called with the cache's lock held.
func complete(k *report.RefusedKey, b *engine.Bucket, now time.Duration) {
	if retry, denied := b.Denied(now); denied {
		k.RetryAfter = retry
	}
	if several := len(engine.Owner(b.Policy()).Limits) > 1; several && k.Limited > 0 {
		k.LimitNumber, _ = b.LastReport(true)
	}
}

// stats are the figures of the node and of what was heard of it.
func (h *health) stats() NodeStats {
	n, cause := h.node.Stats(), ""
	var trips Histogram
	trips.Sum, trips.Buckets = h.node.Trips().Read()
	if n.Outages > 0 {
		cause = n.Cause.String()
	}
	var failures int64
	for _, f := range n.Failed {
		failures += f
	}
	return NodeStats{
		Calls: n.Calls, Failures: failures,
		Saturated: n.Failed[failover.Saturated], CannotServe: n.Failed[failover.CannotServe],
		Misconfigured: n.Failed[failover.Misconfigured],
		Overruns:      h.overruns.Total(), LateReplies: n.LateReplies, LateCalls: n.LateCalls,
		StaleReplies: n.StaleReplies, StateLosses: h.stateLosses.Load(),
		ClockSteps: n.Steps, ClockBack: n.StepsBack, RoundTrip: h.node.RoundTrip(),
		Processes: h.node.AllProcesses(), Absences: n.Absences,
		Breaker: h.node.State().String(), Cause: cause, Outages: n.Outages, OutageTime: n.OutageTime,
		Probed: n.Changes[failover.Probing], Reopened: max(n.Changes[failover.Open]-n.Outages, 0),
		Closed:  n.Changes[failover.Closed],
		Settled: h.debts.Tokens(), RoundTrips: trips,
	}
}

// reloads counts reloads of the configuration.
type reloads struct {
	mu    sync.Mutex
	count ReloadStats
}

// CountReload counts a reload of the configuration in [Stats]. A nil err says that the Group has the new configuration,
// any other one why it does not. Code that watches a configuration, such as policyfile.Watcher, calls it after each
// reload.
func (g *Group) CountReload(err error) {
	if g.isZero() {
		return
	}
	g.reloads.mu.Lock()
	defer g.reloads.mu.Unlock()
	if g.reloads.count.Err = err; err != nil {
		g.reloads.count.Failed++
	} else {
		g.reloads.count.Applied++
	}
}

func (r *reloads) stats() ReloadStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}
