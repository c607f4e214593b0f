package otellimit

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

var groupFigures = []figure[figures]{
	only(upDown, "tiered.keys", "{key}", "Keys in the process now.", func(f figures) int { return f.Keys }),
	only(upDown, "tiered.leaving_keys", "{key}", "Keys that were evicted and still return what they hold.",
		func(f figures) int { return f.Leaving }),
	only(counter, "tiered.evicted_keys", "{key}", "Keys evicted because of MaxKeys.",
		func(f figures) uint64 { return f.Evictions }),
	only(counter, "tiered.standstills", "{standstill}",
		"Times that all leases were dropped, because this machine stood still.",
		func(f figures) int64 { return f.Standstills }),
	only(counter, "tiered.dropped_trace_events", "{event}", "Events dropped because the hooks were too slow.",
		func(f figures) int64 { return f.TraceDropped }),
	only(counter, "tiered.trace_panics", "{event}", "Events whose hook panicked.",
		func(f figures) int64 { return f.TracePanics }),
	{
		name: "tiered.build_info", kind: gauge,
		description: "1, with the format of the buckets in Redis and the SHA-1 of the script.",
		read: func(f figures, send func(float64, ...attribute.KeyValue)) {
			send(1, text("ratelimit.format", f.Format), text("ratelimit.script", f.Script))
		},
	},
	shares("tiered.standing.share", "1", "This process' part of all standing shares, from 0 to 1.",
		func(s tiered.StandingStats) float64 { return s.Fraction }),
	shares("tiered.standing.share_expiry", "s",
		"Time until the right to the standing share ends. It is renewed every 3 s.",
		func(s tiered.StandingStats) float64 { return s.Left.Seconds() }),
	shares("tiered.standing.members", "{process}", "Processes that have a part of the standing shares.",
		func(s tiered.StandingStats) float64 { return float64(s.Members) }),
	shares("tiered.standing.quarantine", "", "1 while the table of standing shares is less than 65 s old, else 0.",
		func(s tiered.StandingStats) float64 { return truth(s.Quarantine) }),
}

// Values of "ratelimit.reason" that are not a tiered.Reason.
const (
	unlimited = "unlimited" // admitted by Unlimited
	blocked   = "blocked"   // refused by Blocked
	invalid   = "invalid"   // refused: the key or the cost is not valid
)

var policyFigures = []figure[tiered.PolicyStats]{
	{
		name: "tiered.decisions", unit: "{request}", kind: counter,
		description: "Requests by where and how they were decided. Refusals of a shadow policy count too.",
		read: func(p tiered.PolicyStats, send func(float64, ...attribute.KeyValue)) {
			r := p.Requests
			decided := func(n int64, tier tiered.Tier, reason string) {
				send(float64(max(n, 0)), tierKey.String(tier.String()), reasonKey.String(reason))
			}
			decided(r.Granted-r.GrantedByRedis, tiered.Local, tiered.Granted.String())
			decided(r.GrantedByRedis, tiered.Remote, tiered.Granted.String())
			decided(r.Shared, tiered.Failover, tiered.Shared.String())
			decided(r.Open, tiered.Failover, tiered.Open.String())
			decided(r.Unlimited, tiered.Local, unlimited)
			decided(r.Limited-r.LimitedByRedis, tiered.Local, tiered.Limited.String())
			decided(r.LimitedByRedis, tiered.Remote, tiered.Limited.String())
			decided(r.ShareSpent, tiered.Failover, tiered.ShareSpent.String())
			decided(r.Unavailable, tiered.Failover, tiered.Unavailable.String())
			decided(r.Blocked, tiered.Local, blocked)
			decided(r.ExceedsBurst, tiered.Local, tiered.ExceedsBurst.String())
			decided(r.Invalid, tiered.None, invalid)
			decided(r.Canceled, tiered.None, tiered.Canceled.String())
		},
	},
	only(counter, "tiered.shadowed_decisions", "{request}",
		"Refused requests that were admitted, because the policy is only tried out.",
		func(p tiered.PolicyStats) int64 { return p.Requests.Shadowed }),
	{
		name: "tiered.requested_tokens", unit: "{token}", kind: counter,
		description: "Tokens that requests asked for, by how they were decided.",
		read: func(p tiered.PolicyStats, send func(float64, ...attribute.KeyValue)) {
			asked := func(n int64, reason string) { send(float64(n), reasonKey.String(reason)) }
			asked(p.Spent+p.Standing, tiered.Granted.String())
			asked(p.Shared, tiered.Shared.String())
			asked(p.Open, tiered.Open.String())
			asked(p.Unlimited, unlimited)
			asked(p.Limited, tiered.Limited.String())
			asked(p.ShareSpent, tiered.ShareSpent.String())
			asked(p.Unavailable, tiered.Unavailable.String())
			asked(p.Blocked, blocked)
		},
	},
	only(counter, "tiered.shadowed_tokens", "{token}",
		"Refused tokens that were admitted, because the policy is only tried out.",
		func(p tiered.PolicyStats) int64 { return p.Shadowed }),
	only(counter, "tiered.granted_tokens", "{token}",
		"Tokens that Redis granted: the outcomes of leased tokens and the held ones.",
		func(p tiered.PolicyStats) int64 { return p.Granted }),
	{
		name: "tiered.leased_tokens", unit: "{token}", kind: counter,
		description: "Tokens that Redis granted, by what became of them.",
		read: func(p tiered.PolicyStats, send func(float64, ...attribute.KeyValue)) {
			send(float64(p.Spent), outcomeKey.String("spent"))
			send(float64(p.Returned), outcomeKey.String("returned"))
			send(float64(p.Burnt), outcomeKey.String("burnt"))
		},
	},
	only(upDown, "tiered.held_tokens", "{token}", "Tokens that Redis granted and that the process holds now.",
		func(p tiered.PolicyStats) int64 { return p.Held }),
	only(counter, "tiered.near_limit_tokens", "{token}", "Tokens admitted while less than a fifth of the burst was left.",
		func(p tiered.PolicyStats) int64 { return p.NearLimit }),
	only(counter, "tiered.reported_tokens", "{token}",
		"Tokens admitted while Redis did not answer, and reported to it since.",
		func(p tiered.PolicyStats) int64 { return p.Settled }),
	only(counter, "tiered.forgiven_tokens", "{token}",
		"Tokens admitted while Redis did not answer that no key pays for.",
		func(p tiered.PolicyStats) int64 { return p.Forgiven }),
	only(counter, "tiered.unanswered_tokens", "{token}", "Tokens requested by calls without an answer.",
		func(p tiered.PolicyStats) int64 { return p.Lost }),
	only(counter, "tiered.rejected_calls", "{call}", "Calls that Redis rejected because of their key alone.",
		func(p tiered.PolicyStats) int64 { return p.Poisoned }),
	only(counter, "tiered.per_key_faults", "{fault}", "Times that PerKey or a request gave a limit that is not valid.",
		func(p tiered.PolicyStats) int64 { return p.PerKeyFaults }),
	buckets("tiered.redis.wait.bucket", "{request}",
		"Requests that waited for Redis for up to le seconds. Those decided in the process are not in it.",
		func(p tiered.PolicyStats) tiered.Histogram { return p.Waits }),
	only(counter, "tiered.redis.wait.time", "s", "Total time that requests waited for Redis.",
		func(p tiered.PolicyStats) float64 { return p.Waits.Sum.Seconds() }),
	only(upDown, "tiered.waiting_calls", "{call}", "Calls of Wait that wait now.",
		func(p tiered.PolicyStats) int64 { return p.Waiting }),
	{
		name: "tiered.wait_calls", unit: "{call}", kind: counter,
		description: "Calls of Wait that had to wait, by how they ended.",
		read: func(p tiered.PolicyStats, send func(float64, ...attribute.KeyValue)) {
			send(float64(p.Waited), outcomeKey.String("admitted"))
			send(float64(p.GaveUp), outcomeKey.String("gave up"))
		},
	},
	only(counter, "tiered.wait_calls.time", "s", "Total time of calls of Wait that had to wait.",
		func(p tiered.PolicyStats) float64 { return p.WaitTime.Seconds() }),
	only(gauge, "tiered.longest_wait_call", "s", "The longest time of a call of Wait since the start.",
		func(p tiered.PolicyStats) float64 { return p.LongestWait.Seconds() }),
	only(gauge, "tiered.processes", "{process}", "Processes that share the limits of the policy.",
		func(p tiered.PolicyStats) int64 { return p.Processes }),
	only(gauge, "tiered.other_service_processes", "{process}",
		"Of these: another service's, with a policy of this name and other limits.",
		func(p tiered.PolicyStats) int64 { return p.OtherServices }),
	only(gauge, "tiered.other_limit_processes", "{process}",
		"Of these: this service's, with other limits, as during a deploy.",
		func(p tiered.PolicyStats) int64 { return p.OtherLimits }),
	only(counter, "tiered.standing.tokens", "{token}", "Tokens admitted by standing shares.",
		func(p tiered.PolicyStats) int64 { return p.Standing }),
	only(gauge, "tiered.standing.outside_processes", "{process}",
		"Processes that do not split the limit, so no standing share is used.",
		func(p tiered.PolicyStats) int64 { return p.Outside }),
}

// breakerStates are the values of [tiered.NodeStats].Breaker.
var breakerStates = []string{"closed", "open", "probing"}

var nodeFigures = []figure[tiered.NodeStats]{
	{
		name: "tiered.redis.calls", unit: "{call}", kind: counter,
		description: "Calls to a Redis node. Those without error.type were answered. Several share a round trip.",
		read: func(n tiered.NodeStats, send func(float64, ...attribute.KeyValue)) {
			send(float64(max(n.Calls-n.Failures, 0)))
			failed := func(n int64, why string) { send(float64(max(n, 0)), errorKey.String(why)) }
			failed(n.Saturated, "saturated")
			failed(n.CannotServe, "cannot serve")
			failed(n.Misconfigured, "misconfigured")
			failed(n.Failures-n.Saturated-n.CannotServe-n.Misconfigured, "other failure")
		},
	},
	buckets("tiered.redis.round_trip.bucket", "{round_trip}",
		"Round trips to a Redis node that were answered within le seconds.",
		func(n tiered.NodeStats) tiered.Histogram { return n.RoundTrips }),
	only(counter, "tiered.redis.round_trip.time", "s", "Total time of the round trips that were answered.",
		func(n tiered.NodeStats) float64 { return n.RoundTrips.Sum.Seconds() }),
	{
		name: "tiered.breaker_state", kind: gauge,
		description: "1 for the state of the breaker, 0 for the others.",
		read: func(n tiered.NodeStats, send func(float64, ...attribute.KeyValue)) {
			for _, state := range breakerStates {
				send(truth(n.Breaker == state), attribute.String("ratelimit.breaker.state", state))
			}
		},
	},
	{
		name: "tiered.last_outage_info", kind: gauge,
		description: "1, with what opened the breaker last. There is none before the first outage.",
		read: func(n tiered.NodeStats, send func(float64, ...attribute.KeyValue)) {
			if n.Cause != "" {
				send(1, text(errorKey, n.Cause))
			}
		},
	},
	only(counter, "tiered.outages", "{outage}", "Times that the breaker opened.",
		func(n tiered.NodeStats) int64 { return n.Outages }),
	only(counter, "tiered.outage", "s", "Time in which the breaker was not closed.",
		func(n tiered.NodeStats) float64 { return n.OutageTime.Seconds() }),
	only(counter, "tiered.overruns", "{request}", "Decisions without an answer within Budget: the fail mode decided.",
		func(n tiered.NodeStats) int64 { return n.Overruns }),
	only(counter, "tiered.late_replies", "{reply}", "Answers after Timeout.",
		func(n tiered.NodeStats) int64 { return n.LateReplies }),
	only(counter, "tiered.late_calls", "{call}", "Calls that reached Redis after their deadline and did nothing.",
		func(n tiered.NodeStats) int64 { return n.LateCalls }),
	only(counter, "tiered.stale_calls", "{call}", "Calls that did nothing because a newer call had overtaken them.",
		func(n tiered.NodeStats) int64 { return n.StaleReplies }),
	only(counter, "tiered.state_losses", "{reply}",
		"Replies that showed that Redis had lost a bucket or the last writes to it.",
		func(n tiered.NodeStats) int64 { return n.StateLosses }),
	only(counter, "tiered.clock_steps", "{step}", "Times that the clock of the node was set by 50 ms or more.",
		func(n tiered.NodeStats) int64 { return n.ClockSteps }),
	only(counter, "tiered.clock_set_back_buckets", "{bucket}",
		"Buckets whose time was set back, because the clock of the node was.",
		func(n tiered.NodeStats) int64 { return n.ClockBack }),
	only(gauge, "tiered.node_processes", "{process}",
		"Processes that are present on the node, whatever their policies are.",
		func(n tiered.NodeStats) int64 { return n.Processes }),
	only(counter, "tiered.unrecorded_presence_reports", "{report}",
		"Presence reports of this process that the node did not record.",
		func(n tiered.NodeStats) int64 { return n.Absences }),
}
