package promlimit

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// metric is a metric of a Group, a policy or a node, which T are the figures of.
type metric[T any] struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string // besides "group", and "policy" or "node"

	// One of these.
	read      func(of T, send func(value float64, labels ...string))
	histogram func(of T) tiered.Histogram
}

// figures are those of a Group.
type figures struct {
	tiered.Stats
	standing bool // a policy has standing shares
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// number is a figure without labels of its own.
type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// only is the metric that has one figure.
func only[T any, N number](kind prometheus.ValueType, name, help string, of func(T) N) metric[T] {
	return metric[T]{name: name, help: help, kind: kind, read: func(t T, send func(float64, ...string)) {
		send(float64(of(t)))
	}}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// shares is a metric of standing shares: there is none without a policy that has them.
func shares(name, help string, of func(tiered.StandingStats) float64) metric[figures] {
	return metric[figures]{name: name, help: help, kind: gauge, read: func(f figures, send func(float64, ...string)) {
		if f.standing {
			send(of(f.Standing))
		}
	}}
}

var groupMetrics = []metric[figures]{
	only(gauge, "tiered_keys", "Keys in the process now.", func(f figures) int { return f.Keys }),
	only(gauge, "tiered_leaving_keys", "Keys that were evicted and still return what they hold.",
		func(f figures) int { return f.Leaving }),
	only(counter, "tiered_evicted_keys_total", "Keys evicted because of MaxKeys.",
		func(f figures) uint64 { return f.Evictions }),
	only(counter, "tiered_standstills_total", "Times that all leases were dropped, because this machine stood still.",
		func(f figures) int64 { return f.Standstills }),
	only(counter, "tiered_dropped_trace_events_total", "Events dropped because the hooks were too slow.",
		func(f figures) int64 { return f.TraceDropped }),
	only(counter, "tiered_trace_panics_total", "Events whose hook panicked.",
		func(f figures) int64 { return f.TracePanics }),
	{
		name: "tiered_build_info", help: "1, with the format of the buckets in Redis and the SHA-1 of the script.",
		kind: gauge, labels: []string{"format", "script"},
		read: func(f figures, send func(float64, ...string)) { send(1, labelValue(f.Format), labelValue(f.Script)) },
	},
	shares("tiered_standing_share_ratio", "This process' part of all standing shares, from 0 to 1.",
		func(s tiered.StandingStats) float64 { return s.Fraction }),
	shares("tiered_standing_share_expiry_seconds",
		"Time until the right to the standing share ends. It is renewed every 3 s.",
		func(s tiered.StandingStats) float64 { return s.Left.Seconds() }),
	shares("tiered_standing_members", "Processes that have a part of the standing shares.",
		func(s tiered.StandingStats) float64 { return float64(s.Members) }),
	shares("tiered_standing_quarantine", "1 while the table of standing shares is less than 65 s old, else 0.",
		func(s tiered.StandingStats) float64 { return truth(s.Quarantine) }),
}

// Values of the label "reason" that are not a tiered.Reason.
const (
	unlimited = "unlimited" // admitted by Unlimited
	blocked   = "blocked"   // refused by Blocked
	invalid   = "invalid"   // refused: the key or the cost is not valid
)

var policyMetrics = []metric[tiered.PolicyStats]{
	{
		name: "tiered_decisions_total",
		help: "Requests by where and how they were decided. Refusals of a shadow policy count too.",
		kind: counter, labels: []string{"tier", "reason"},
		read: func(p tiered.PolicyStats, send func(float64, ...string)) {
			r := p.Requests
			decided := func(n int64, tier tiered.Tier, reason string) { send(float64(max(n, 0)), tier.String(), reason) }
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
	only(counter, "tiered_shadowed_decisions_total",
		"Refused requests that were admitted, because the policy is only tried out.",
		func(p tiered.PolicyStats) int64 { return p.Requests.Shadowed }),
	{
		name: "tiered_requested_tokens_total", help: "Tokens that requests asked for, by how they were decided.",
		kind: counter, labels: []string{"reason"},
		read: func(p tiered.PolicyStats, send func(float64, ...string)) {
			send(float64(p.Spent+p.Standing), tiered.Granted.String())
			send(float64(p.Shared), tiered.Shared.String())
			send(float64(p.Open), tiered.Open.String())
			send(float64(p.Unlimited), unlimited)
			send(float64(p.Limited), tiered.Limited.String())
			send(float64(p.ShareSpent), tiered.ShareSpent.String())
			send(float64(p.Unavailable), tiered.Unavailable.String())
			send(float64(p.Blocked), blocked)
		},
	},
	only(counter, "tiered_shadowed_tokens_total",
		"Refused tokens that were admitted, because the policy is only tried out.",
		func(p tiered.PolicyStats) int64 { return p.Shadowed }),
	only(counter, "tiered_granted_tokens_total",
		"Tokens that Redis granted: the outcomes of leased tokens and the held ones.",
		func(p tiered.PolicyStats) int64 { return p.Granted }),
	{
		name: "tiered_leased_tokens_total", help: "Tokens that Redis granted, by what became of them.",
		kind: counter, labels: []string{"outcome"},
		read: func(p tiered.PolicyStats, send func(float64, ...string)) {
			send(float64(p.Spent), "spent")
			send(float64(p.Returned), "returned")
			send(float64(p.Burnt), "burnt")
		},
	},
	only(gauge, "tiered_held_tokens", "Tokens that Redis granted and that the process holds now.",
		func(p tiered.PolicyStats) int64 { return p.Held }),
	only(counter, "tiered_near_limit_tokens_total", "Tokens admitted while less than a fifth of the burst was left.",
		func(p tiered.PolicyStats) int64 { return p.NearLimit }),
	only(counter, "tiered_reported_tokens_total", "Tokens admitted while Redis did not answer, and reported to it since.",
		func(p tiered.PolicyStats) int64 { return p.Settled }),
	only(counter, "tiered_forgiven_tokens_total", "Tokens admitted while Redis did not answer that no key pays for.",
		func(p tiered.PolicyStats) int64 { return p.Forgiven }),
	only(counter, "tiered_unanswered_tokens_total", "Tokens requested by calls without an answer.",
		func(p tiered.PolicyStats) int64 { return p.Lost }),
	only(counter, "tiered_rejected_calls_total", "Calls that Redis rejected because of their key alone.",
		func(p tiered.PolicyStats) int64 { return p.Poisoned }),
	only(counter, "tiered_per_key_faults_total", "Times that PerKey or a request gave a limit that is not valid.",
		func(p tiered.PolicyStats) int64 { return p.PerKeyFaults }),
	{
		name:      "tiered_redis_wait_seconds",
		help:      "Time that requests waited for Redis. Those decided in the process are not in it.",
		histogram: func(p tiered.PolicyStats) tiered.Histogram { return p.Waits },
	},
	only(gauge, "tiered_waiting_calls", "Calls of Wait that wait now.",
		func(p tiered.PolicyStats) int64 { return p.Waiting }),
	{
		name: "tiered_wait_calls_total", help: "Calls of Wait that had to wait, by how they ended.",
		kind: counter, labels: []string{"outcome"},
		read: func(p tiered.PolicyStats, send func(float64, ...string)) {
			send(float64(p.Waited), "admitted")
			send(float64(p.GaveUp), "gave up")
		},
	},
	only(counter, "tiered_wait_calls_seconds_total", "Total time of calls of Wait that had to wait.",
		func(p tiered.PolicyStats) float64 { return p.WaitTime.Seconds() }),
	only(gauge, "tiered_longest_wait_call_seconds", "The longest time of a call of Wait since the start.",
		func(p tiered.PolicyStats) float64 { return p.LongestWait.Seconds() }),
	only(gauge, "tiered_processes", "Processes that share the limits of the policy.",
		func(p tiered.PolicyStats) int64 { return p.Processes }),
	only(gauge, "tiered_other_service_processes",
		"Of these: another service's, with a policy of this name and other limits.",
		func(p tiered.PolicyStats) int64 { return p.OtherServices }),
	only(gauge, "tiered_other_limit_processes", "Of these: this service's, with other limits, as during a deploy.",
		func(p tiered.PolicyStats) int64 { return p.OtherLimits }),
	only(counter, "tiered_standing_tokens_total", "Tokens admitted by standing shares.",
		func(p tiered.PolicyStats) int64 { return p.Standing }),
	only(gauge, "tiered_standing_outside_processes",
		"Processes that do not split the limit, so no standing share is used.",
		func(p tiered.PolicyStats) int64 { return p.Outside }),
}

// breakerStates are the values of [tiered.NodeStats].Breaker.
var breakerStates = []string{"closed", "open", "probing"}

var nodeMetrics = []metric[tiered.NodeStats]{
	{
		name: "tiered_redis_calls_total", help: "Calls to a Redis node by outcome. Several share a round trip.",
		kind: counter, labels: []string{"outcome"},
		read: func(n tiered.NodeStats, send func(float64, ...string)) {
			send(float64(max(n.Calls-n.Failures, 0)), "answered")
			send(float64(n.Saturated), "saturated")
			send(float64(n.CannotServe), "cannot serve")
			send(float64(n.Misconfigured), "misconfigured")
			send(float64(max(n.Failures-n.Saturated-n.CannotServe-n.Misconfigured, 0)), "other failure")
		},
	},
	{
		name: "tiered_redis_round_trip_seconds", help: "Round trips to a Redis node that were answered.",
		histogram: func(n tiered.NodeStats) tiered.Histogram { return n.RoundTrips },
	},
	{
		name: "tiered_breaker_state", help: "1 for the state of the breaker, 0 for the others.",
		kind: gauge, labels: []string{"state"},
		read: func(n tiered.NodeStats, send func(float64, ...string)) {
			for _, state := range breakerStates {
				send(truth(n.Breaker == state), state)
			}
		},
	},
	{
		name: "tiered_last_outage_info", help: "1, with what opened the breaker last. There is none before the first outage.",
		kind: gauge, labels: []string{"cause"},
		read: func(n tiered.NodeStats, send func(float64, ...string)) {
			if n.Cause != "" {
				send(1, labelValue(n.Cause))
			}
		},
	},
	only(counter, "tiered_outages_total", "Times that the breaker opened.",
		func(n tiered.NodeStats) int64 { return n.Outages }),
	only(counter, "tiered_outage_seconds_total", "Time in which the breaker was not closed.",
		func(n tiered.NodeStats) float64 { return n.OutageTime.Seconds() }),
	only(counter, "tiered_overruns_total", "Decisions without an answer within Budget: the fail mode decided.",
		func(n tiered.NodeStats) int64 { return n.Overruns }),
	only(counter, "tiered_late_replies_total", "Answers after Timeout.",
		func(n tiered.NodeStats) int64 { return n.LateReplies }),
	only(counter, "tiered_late_calls_total", "Calls that reached Redis after their deadline and did nothing.",
		func(n tiered.NodeStats) int64 { return n.LateCalls }),
	only(counter, "tiered_stale_calls_total", "Calls that did nothing because a newer call had overtaken them.",
		func(n tiered.NodeStats) int64 { return n.StaleReplies }),
	only(counter, "tiered_state_losses_total",
		"Replies that showed that Redis had lost a bucket or the last writes to it.",
		func(n tiered.NodeStats) int64 { return n.StateLosses }),
	only(counter, "tiered_clock_steps_total", "Times that the clock of the node was set by 50 ms or more.",
		func(n tiered.NodeStats) int64 { return n.ClockSteps }),
	only(counter, "tiered_clock_set_back_buckets_total",
		"Buckets whose time was set back, because the clock of the node was.",
		func(n tiered.NodeStats) int64 { return n.ClockBack }),
	only(gauge, "tiered_node_processes", "Processes that are present on the node, whatever their policies are.",
		func(n tiered.NodeStats) int64 { return n.Processes }),
	only(counter, "tiered_unrecorded_presence_reports_total",
		"Presence reports of this process that the node did not record.",
		func(n tiered.NodeStats) int64 { return n.Absences }),
}
