package tiered

import (
	"fmt"
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
	Keys         int    // in the process now
	Leaving      int    // evicted, but still returning what they hold
	Evictions    uint64 // keys evicted because of MaxKeys
	Standstills  int64  // times that all leases ended: this machine or process stood still, or its clock was set forward
	TraceDropped int64  // events dropped because the hooks were too slow
	TracePanics  int64  // events whose hook panicked
	Format       string // of the buckets in Redis: the last part of their keys' names
	Script       string // SHA-1 of the script that decides in Redis, 40 hex digits

	Reloads struct { // of a policy file, and of a configuration of tieredd
		Applied int64 // the Group has the new configuration
		Failed  int64 // something was wrong, and the configuration of before stayed
		Err     error // what was wrong with the last one, nil if nothing was
	}

	Standing struct { // the standing shares of this process, of all policies that have some
		Fraction   float64       // part of all standing shares that this process leases from Redis: 0 … 1
		Left       time.Duration // how long that lease still lasts; it is renewed every 3 s
		Members    int64         // processes that have a part of them, as last seen
		Quarantine bool          // the table of shares in Redis is less than 65 s old: no process gets more than it had before
	}

	AtOnce map[string]AtOnceStats // what runs at the same time, by policy of package atonce

	Recent   []Event                // state changes and faults: the last 64, oldest first
	Policies map[string]PolicyStats // by name
	Nodes    map[string]NodeStats   // by node
}

// PolicyStats are the figures of one policy, by the question that they answer.
type PolicyStats struct {
	// Number is that of no other policy that the Group has had. Under one name, another Number is
	// another policy, whose figures began at 0: see [Group.SetPolicies].
	Number int

	// Requests are requests by how they were decided. One over several keys counts once for each
	// policy that admitted it, or that refused it.
	Requests struct {
		Allowed                   int64 // Granted + Fallback + Open + Unlimited
		Granted, Fallback, Open   int64 // admitted with that Reason, but for Unlimited
		Unlimited                 int64 // admitted by an Unlimited limit
		Refused                   int64 // the next seven
		Limited, FallbackSpent    int64 // refused with that Reason, as the next line
		Unavailable, ExceedsBurst int64 // ExceedsBurst without Blocked
		Blocked                   int64 // refused by a Blocked limit
		Invalid                   int64 // refused with InvalidKey or InvalidCost
		Canceled                  int64 // refused with that Reason
		Shadowed                  int64 // of Refused: they were admitted after all, because of Policy.Shadow
		GrantedByRedis            int64 // of Granted: Redis was asked for this request; the rest were decided in this process
		LimitedByRedis            int64 // of Limited: the same
		OwnLimits                 bool  // some went by a limit that they carried, or by that of a plan: see [Use.WithLimit]
	}

	RedisTime struct { // for which requests waited for Redis, if they did. metrics.Bound has the bounds of the Buckets
		Count   int64
		Sum     time.Duration
		Buckets []int64 // how many are in each
	}

	Tokens struct { // that the requests asked for, by the same names. A Wait that asks again does not count as Limited
		Granted                                      int64 // Leases.Spent + Standing.Spent + Costs.Refunded
		Fallback, Open, Unlimited                    int64
		Limited, FallbackSpent, Unavailable, Blocked int64
		Shadowed                                     int64 // of the refused ones: admitted after all
		NearLimit                                    int64 // of Leases.Spent: when less than a fifth of the burst was left
	}

	Leases struct { // tokens that Redis granted: Granted = Spent + Returned + Burnt + Held
		Direct   bool  // nothing is leased: each token is taken from Redis, because of Lease.Size or the algorithm
		Granted  int64 // by Redis
		Spent    int64 // admitted with tokens that Redis granted, or charged to them afterwards
		Returned int64 // returned unspent
		Burnt    int64 // expired unspent, or lost during the return
		Held     int64 // held now
		Lost     int64 // requested by calls without an answer. Some or all of them may have been granted, and are lost
	}

	Costs struct { // tokens that were corrected after the decision
		Refunded int64 // that requests gave back: they were Leases.Spent or Standing.Spent, and are no longer in it
		Charged  int64 // by Charge, or by Settle beyond what was reserved, and not in Leases.Spent. What is Forgiven of it is in it
		Settled  int64 // of Tokens.Fallback and Tokens.Open: reported to Redis since, or too old to count
		Forgiven int64 // debt that no key pays: beyond MaxDebt, or of a key whose calls are Faults.Rejected
	}

	Standing struct { // the standing shares of the policy
		Spent   int64 // admitted by them. It is not in Leases, but moves to Granted and Returned there if it goes back to Redis
		Outside int64 // processes that do not split the policy's limit: while there are any, no standing share is used
	}

	Waiting struct { // calls of Wait and WaitN that had to
		Now      int64
		Admitted int64         // got their tokens
		GaveUp   int64         // ended without tokens: canceled, out of time, or refused at once as too late
		Time     time.Duration // total of Admitted and GaveUp
		Longest  time.Duration // of them
	}

	Processes struct {
		// Sharing is what FailLocal divides the limit by: the largest count that a node reported in
		// the last 10 s, or in those before it stopped to answer, and at least Options.Processes.
		// Each key's fallback goes by its own node.
		Sharing       int64
		OtherServices int64 // processes of another service that has a policy of this name with other limits, now
		OtherLimits   int64 // processes of this service that have other limits, now, as during a deploy
	}

	Faults struct {
		PerKey       int64 // times that PerKey panicked or returned an invalid limit, or that a request carried one
		UnknownPlans int64 // requests with a plan that is not in Policy.Plans: Policy.Limit decided
		Rejected     int64 // calls that Redis rejected because of their key alone: of another type, not ours, or damaged
	}

	Top []RefusedKey // the most refused keys, at most 20, the most refused first
}

// RefusedKey says how many tokens of a key were refused, and why. It is exact while MaxKeys keeps
// the key in the process. If a key is evicted, blocked or unblocked, its refusals until then are
// kept only if it is among those that were refused most.
type RefusedKey struct {
	Key                        string        `json:"-"` // or its digest, if over 200 bytes; it may be a secret
	Tokens                     int64         // the sum of the next two lines
	Limited, Blocked           int64         // by the limit; by a Blocked limit, of the policy or of the key
	FallbackSpent, Unavailable int64         // with that Reason
	Forgotten                  int64         // upper bound of the tokens that are missing in the other figures
	LimitNumber                uint8         // of the limit that refused last: see [Decision]. 0 if evicted
	RetryAfter                 time.Duration // until a token may be admitted again, 0 if it would be now
}

// String says how many tokens were refused, without the key.
func (k RefusedKey) String() string {
	return fmt.Sprintf("refused: %d by the limit, %d by the fallback, %d by fail-closed, %d blocked",
		k.Limited, k.FallbackSpent, k.Unavailable, k.Blocked)
}

// total returns how many durations are in the buckets of a histogram.
func total(buckets []int64) (n int64) {
	for _, b := range buckets {
		n += b
	}
	return n
}

// NodeStats are the figures of one Redis node.
type NodeStats struct {
	Number int // as of a policy: a node that had left its Cluster and came back has another one, and figures that began at 0

	Calls struct {
		Sent          int64         // several share a round trip
		Failed        int64         // not served: without an answer (these may have been executed), or answered by an error
		Saturated     int64         // of Failed: this process' own pool had no free connection
		CannotServe   int64         // of Failed: Redis said that it cannot serve (LOADING, READONLY, OOM, …)
		Misconfigured int64         // of Failed: Redis refused this user or call (NOAUTH, WRONGPASS, NOPERM, MOVED); needs a new setting
		Overruns      int64         // decisions without an answer within Budget: the fail mode decided
		LateReplies   int64         // answers after Timeout
		Late          int64         // reached Redis after their deadline and did nothing
		Stale         int64         // did nothing because a newer call had overtaken them
		RoundTrip     time.Duration // 99th percentile of recent ones; 2 ms, or a typical one if that is more, until there are 16

		RoundTrips struct { // all that were answered; calls that leave together share one. The fields are those of RedisTime
			Count   int64
			Sum     time.Duration
			Buckets []int64
		}
	}

	Outages struct { // those that the node's breaker noticed
		Breaker  string        // its state now: "closed", "open" or "probing"
		Cause    string        // class of the error that opened it last, see [Event].Class; "" for never
		Count    int64         // times that it opened when it was closed
		Time     time.Duration // total time in which it was not closed
		Probed   int64         // times that it let one call through, to see whether Redis answers
		Reopened int64         // times that it opened after such a call
		Ended    int64         // times that it closed
		Settled  int64         // tokens admitted without Redis and reported to it
	}

	Faults struct {
		StateLosses int64 // replies that showed that Redis had lost a bucket in use, or the last writes to it
		ClockSteps  int64 // times that the node's clock was set by 50 ms or more, as seen from here
		ClockBack   int64 // buckets whose time was set back, because the node's clock went back by more than a second
		Absences    int64 // presence reports that the node did not record, though its breaker was closed
	}

	Processes int64 // that are present there, whatever their policies are
}

// Stats walks all keys: call it every few seconds, not per request.
func (g *Group) Stats() Stats {
	if g.isZero() {
		return Stats{}
	}
	s := Stats{Nodes: make(map[string]NodeStats)}
	s.Keys, s.Leaving, s.Evictions = g.core.Cache.Counts()
	s.Standstills, s.TraceDropped, s.TracePanics = g.core.Standstills.Load(), g.trace.calls.Dropped(), g.trace.calls.Panics()
	s.Format, s.Script = lua.TokenBucket.Mark(), lua.TokenBucket.Script().SHA
	s.Recent = g.trace.recentEvents()
	s.Standing = g.core.Shares.State(g.core.Now())
	g.reloads.stats(&s)
	s.AtOnce = g.atOnceStats()

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

// atOnceStats returns the figures of all guests by policy. Two of one policy are added up.
func (g *Group) atOnceStats() map[string]AtOnceStats {
	g.guestsMu.Lock()
	guests := g.guests
	g.guestsMu.Unlock()
	all := make(map[string]AtOnceStats, len(guests))
	for _, one := range guests {
		name, s := one.Stats()
		all[name] = all[name].plus(s)
	}
	return all
}

// Stats returns the figures of this policy, as slowly as [Group.Stats].
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
		p := &all[i]
		p.Number, p.Requests.OwnLimits = c.Number, c.Carries()
		p.Leases.Direct, p.Leases.Lost = c.Settings().Initial.NoLease, gone.Unanswered
		p.Costs.Charged, p.Costs.Forgiven = c.Charged.Load(), gone.Forgiven
		p.Tokens.Unlimited, p.Tokens.Shadowed = c.AdmittedUnlimited.Load(), c.Shadowed.Load()
		p.Faults.PerKey, p.Faults.UnknownPlans, p.Faults.Rejected = c.PerKeyFaults.Load(), l.unknownPlans.Load(), gone.Rejected
		p.Standing.Spent, p.Standing.Outside = c.Standing.Total(), l.split.Outsiders()
		p.Processes.OtherServices, p.Processes.OtherLimits = l.others.services, l.others.here
		p.Processes.Sharing = max(int64(g.options.Processes), 1)
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
		has, asked := &p.Leases, &p.Tokens
		has.Granted, has.Spent, has.Returned, has.Burnt, has.Held = t.Granted, t.Spent, t.Returned, t.Burnt, t.Held
		asked.FallbackSpent, asked.Unavailable = t.FallbackSpent, t.Failed
		// A decision from before a change of the mode may be counted a moment later.
		asked.Limited = max(t.Refused-t.FallbackSpent, 0)
		asked.Blocked, asked.Fallback, asked.Open, asked.NearLimit = t.Blocked, t.Fallback, t.Opened, c.NearLimit.Load()
		p.Costs.Settled, p.Costs.Refunded = max(t.Settled-c.Paid.Load(), 0), c.Refunded.Load()
		w := c.Waits.Figures()
		p.Waiting.Now, p.Waiting.Admitted, p.Waiting.GaveUp = w.Waiting, w.Waited, w.GaveUp
		p.Waiting.Time, p.Waiting.Longest = w.Time, w.Longest
		asked.Granted = has.Spent + p.Standing.Spent + p.Costs.Refunded
		l.countRequests(p)
		if p.RedisTime.Sum, p.RedisTime.Buckets = c.Requests.Waits(); p.RedisTime.Buckets == nil {
			p.RedisTime.Buckets = empty
		}
		p.RedisTime.Count = total(p.RedisTime.Buckets)
		for _, k := range tops[i].Keys() {
			p.Top = append(p.Top, RefusedKey{
				Key: k.Key, Tokens: k.Tokens(), Limited: k.Limited, FallbackSpent: k.FallbackSpent, Unavailable: k.Unavailable,
				Blocked: k.Blocked, Forgotten: k.Forgotten, LimitNumber: k.LimitNumber, RetryAfter: k.RetryAfter,
			})
		}
		for _, n := range nodes {
			p.Processes.Sharing = max(p.Processes.Sharing, n.Processes(l.place()))
		}
	}
	return all
}

// countRequests sets how many requests there were, by the tokens that p counts.
func (l *Limiter) countRequests(p *PolicyStats) {
	of, r, asked := l.core.Requests.Of, &p.Requests, &p.Tokens
	r.Granted = of(report.Granted, asked.Granted)
	r.Fallback = of(report.Fallback, asked.Fallback)
	r.Open = of(report.Open, asked.Open)
	r.Unlimited = of(report.Unlimited, asked.Unlimited)
	r.Allowed = r.Granted + r.Fallback + r.Open + r.Unlimited

	r.Limited = of(report.Limited, asked.Limited)
	r.FallbackSpent = of(report.FallbackSpent, asked.FallbackSpent)
	r.Unavailable = of(report.Unavailable, asked.Unavailable)
	r.Blocked = of(report.Blocked, asked.Blocked)
	r.ExceedsBurst = of(report.ExceedsBurst, 0)
	r.Invalid = of(report.Invalid, 0)
	r.Canceled = of(report.Canceled, 0)
	r.Refused = r.Limited + r.FallbackSpent + r.Unavailable + r.Blocked + r.ExceedsBurst + r.Invalid + r.Canceled

	r.Shadowed = of(report.Shadowed, 0)
	r.GrantedByRedis, r.LimitedByRedis = of(report.GrantedByRedis, 0), of(report.LimitedByRedis, 0)
}

// complete adds what b knows now to the refusals of b's key. It is called with the cache's lock
// held.
func complete(k *report.RefusedKey, b *engine.Bucket, now time.Duration) {
	if retry, denied := b.Hot().Denied(now); denied {
		k.RetryAfter = retry
	}
	if several := len(engine.Owner(b.Policy()).Limits) > 1; several && k.Limited > 0 {
		k.LimitNumber, _ = b.Hot().LastReport(true)
	}
}

// stats are the figures of the node and of what was heard of it.
func (h *health) stats() (s NodeStats) {
	n := h.node
	s.Number = n.Number()
	for i := range n.Failed {
		s.Calls.Failed += n.Failed[i].Load()
	}
	s.Calls.Sent, s.Calls.Overruns = n.Calls.Load(), h.overruns.Total()
	s.Calls.Saturated = n.Failed[failover.Saturated].Load()
	s.Calls.CannotServe = n.Failed[failover.CannotServe].Load()
	s.Calls.Misconfigured = n.Failed[failover.Misconfigured].Load() + n.Failed[failover.Refused].Load()
	s.Calls.LateReplies, s.Calls.Late = n.LateReplies.Load(), n.LateCalls.Load()
	s.Calls.Stale, s.Calls.RoundTrip = n.StaleReplies.Load(), n.RoundTrip()
	s.Calls.RoundTrips.Sum, s.Calls.RoundTrips.Buckets = n.Trips.Read()
	s.Calls.RoundTrips.Count = total(s.Calls.RoundTrips.Buckets)

	var cause failover.Class
	s.Outages.Count, s.Outages.Time, cause = n.AllOutages()
	if s.Outages.Breaker = n.State().String(); s.Outages.Count > 0 {
		s.Outages.Cause = cause.String()
	}
	s.Outages.Probed, s.Outages.Ended = n.Changes[failover.Probing].Load(), n.Changes[failover.Closed].Load()
	s.Outages.Reopened = max(n.Changes[failover.Open].Load()-s.Outages.Count, 0)
	s.Outages.Settled = h.debts.Tokens()

	s.Faults.StateLosses, s.Faults.Absences = h.stateLosses.Load(), n.Absences.Load()
	s.Faults.ClockSteps, s.Faults.ClockBack = n.Steps.Load(), n.StepsBack.Load()
	s.Processes = n.AllProcesses()
	return s
}

// CountReload counts a reload of the configuration in Stats.Reloads: nil says that the Group has
// the new one, any other error why it has not. Package policyfile calls it for its files.
func (g *Group) CountReload(err error) {
	if g.isZero() {
		return
	}
	g.reloads.mu.Lock()
	defer g.reloads.mu.Unlock()
	if g.reloads.err = err; err != nil {
		g.reloads.failed++
	} else {
		g.reloads.applied++
	}
}

// stats writes what was counted to s.
func (r *reloads) stats(s *Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Reloads.Applied, s.Reloads.Failed, s.Reloads.Err = r.applied, r.failed, r.err
}
