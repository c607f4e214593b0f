package metrics

import "github.com/tiered-limiter/tiered-limiter/tiered"

// reading is a metric of a Group, a policy or a node, which T are the figures of.
type reading[T any] struct {
	Metric // its Labels are those besides "group", "policy" and "node"

	// One of these.
	read      func(of T, send func(value float64, labels ...string))
	histogram func(of T) Durations
}

// figures are those of a Group.
type figures struct {
	tiered.Stats
	standing bool // a policy has standing shares
}

// number is a figure without labels of its own.
type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// only is the metric that has one figure.
func only[T any, N number](kind Kind, name, unit, help string, of func(T) N) reading[T] {
	return several(kind, name, unit, help, nil, func(t T, send func(float64, ...string)) { send(float64(of(t))) })
}

// several is a metric whose figures have labels.
func several[T any](
	kind Kind, name, unit, help string, labels []string, read func(of T, send func(float64, ...string)),
) reading[T] {
	return reading[T]{Metric: Metric{name, help, unit, kind, labels}, read: read}
}

// durations is a histogram.
func durations[T any](name, help string, of func(T) Durations) reading[T] {
	return reading[T]{Metric: Metric{name, help, "s", Histogram, nil}, histogram: of}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// shares is a metric of standing shares: there is none without a policy that has them.
func shares(name, unit, help string, of func(*tiered.Stats) float64) reading[figures] {
	return several(Gauge, name, unit, help, nil, func(f figures, send func(float64, ...string)) {
		if f.standing {
			send(of(&f.Stats))
		}
	})
}

var ofGroup = []reading[figures]{
	only(UpDown, "tiered_keys", "{key}", "Keys in the process now.", func(f figures) int { return f.Keys }),
	only(UpDown, "tiered_leaving_keys", "{key}", "Keys that were evicted and still return what they hold.",
		func(f figures) int { return f.Leaving }),
	only(Counter, "tiered_evicted_keys_total", "{key}", "Keys evicted because of MaxKeys.",
		func(f figures) uint64 { return f.Evictions }),
	only(Counter, "tiered_standstills_total", "{standstill}",
		"Times that all leases ended, because this machine or process stood still.",
		func(f figures) int64 { return f.Standstills }),
	only(Counter, "tiered_dropped_trace_events_total", "{event}", "Events dropped because the hooks were too slow.",
		func(f figures) int64 { return f.TraceDropped }),
	only(Counter, "tiered_trace_panics_total", "{event}", "Events whose hook panicked.",
		func(f figures) int64 { return f.TracePanics }),
	several(Gauge, "tiered_build_info", "",
		"1, with the format of the buckets in Redis and the SHA-1 of the script.", []string{"format", "script"},
		func(f figures, send func(float64, ...string)) { send(1, cleaned(f.Format), cleaned(f.Script)) }),
	several(Counter, "tiered_config_reloads_total", "{reload}",
		"Reloads of the configuration, by whether it is used.", []string{"outcome"},
		func(f figures, send func(float64, ...string)) {
			send(float64(f.Reloads.Applied), "applied")
			send(float64(f.Reloads.Failed), "failed")
		}),
	only(Gauge, "tiered_config_last_reload_successful", "",
		"0 if something was wrong with the configuration at the last reload, else 1.",
		func(f figures) float64 { return truth(f.Reloads.Err == nil) }),
	shares("tiered_standing_share_ratio", "1", "This process' part of all standing shares, from 0 to 1.",
		func(s *tiered.Stats) float64 { return s.Standing.Fraction }),
	shares("tiered_standing_share_expiry_seconds", "s",
		"Time until the right to the standing share ends. It is renewed every 3 s.",
		func(s *tiered.Stats) float64 { return s.Standing.Left.Seconds() }),
	shares("tiered_standing_members", "{process}", "Processes that have a part of the standing shares.",
		func(s *tiered.Stats) float64 { return float64(s.Standing.Members) }),
	shares("tiered_standing_quarantine", "", "1 while the table of standing shares is less than 65 s old, else 0.",
		func(s *tiered.Stats) float64 { return truth(s.Standing.Quarantine) }),
}

// ofPlaces has what runs at the same time, by policy.
var ofPlaces = []reading[tiered.AtOnceStats]{
	only(UpDown, "tiered_running_places", "{place}", "Places that requests have now.",
		func(s tiered.AtOnceStats) int64 { return s.Running }),
	only(UpDown, "tiered_place_keys", "{key}", "Keys with requests, spare places or waiters now.",
		func(s tiered.AtOnceStats) int { return s.Keys }),
	only(UpDown, "tiered_place_waiters", "{request}", "Requests that wait for a place now.",
		func(s tiered.AtOnceStats) int { return s.Waiting }),
	several(Counter, "tiered_place_requests_total", "{request}",
		"Requests for places, by what gave them or why there were none.", []string{"outcome"},
		func(s tiered.AtOnceStats, send func(float64, ...string)) {
			send(float64(s.Granted-s.Spare-s.FailMode), "redis")
			send(float64(s.Spare), "spare")
			send(float64(s.FailMode), "fail mode")
			send(float64(s.Refused), "full")
			send(float64(s.Unavailable), "unavailable")
		}),
	only(Counter, "tiered_lost_places_total", "{place}",
		"Places that Redis may have given to others while requests had them.",
		func(s tiered.AtOnceStats) int64 { return s.Lost }),
	only(Counter, "tiered_rejected_place_answers_total", "{answer}",
		"Answers that said that a key in Redis is not one of places.",
		func(s tiered.AtOnceStats) int64 { return s.Damaged }),
	only(Counter, "tiered_place_calls_total", "{call}", "Calls to Redis about places, each of up to 64 keys.",
		func(s tiered.AtOnceStats) int64 { return s.Calls }),
}

// Values of the label "reason" that are not a tiered.Reason.
const (
	unlimited = "unlimited" // admitted by Unlimited
	blocked   = "blocked"   // refused by Blocked
	invalid   = "invalid"   // refused: the key or the cost is not valid
)

var ofPolicy = []reading[tiered.PolicyStats]{
	several(Counter, "tiered_decisions_total", "{request}",
		"Requests by where and how they were decided. Refusals of a shadow policy count too.", []string{"tier", "reason"},
		func(p tiered.PolicyStats, send func(float64, ...string)) {
			r := p.Requests
			decided := func(n int64, tier tiered.Tier, reason string) { send(float64(max(n, 0)), tier.String(), reason) }
			decided(r.Granted-r.GrantedByRedis, tiered.Local, tiered.Granted.String())
			decided(r.GrantedByRedis, tiered.Remote, tiered.Granted.String())
			decided(r.Fallback, tiered.Failover, tiered.Fallback.String())
			decided(r.Open, tiered.Failover, tiered.Open.String())
			decided(r.Unlimited, tiered.Local, unlimited)
			decided(r.Limited-r.LimitedByRedis, tiered.Local, tiered.Limited.String())
			decided(r.LimitedByRedis, tiered.Remote, tiered.Limited.String())
			decided(r.FallbackSpent, tiered.Failover, tiered.FallbackSpent.String())
			decided(r.Unavailable, tiered.Failover, tiered.Unavailable.String())
			decided(r.Blocked, tiered.Local, blocked)
			decided(r.ExceedsBurst, tiered.Local, tiered.ExceedsBurst.String())
			decided(r.Invalid, 0, invalid)
			decided(r.Canceled, 0, tiered.Canceled.String())
		}),
	only(Counter, "tiered_shadowed_decisions_total", "{request}",
		"Refused requests that were admitted, because the policy is only tried out.",
		func(p tiered.PolicyStats) int64 { return p.Requests.Shadowed }),
	several(Counter, "tiered_requested_tokens_total", "{token}",
		"Tokens that requests asked for, by how they were decided.", []string{"reason"},
		func(p tiered.PolicyStats, send func(float64, ...string)) {
			send(float64(p.Tokens.Granted), tiered.Granted.String())
			send(float64(p.Tokens.Fallback), tiered.Fallback.String())
			send(float64(p.Tokens.Open), tiered.Open.String())
			send(float64(p.Tokens.Unlimited), unlimited)
			send(float64(p.Tokens.Limited), tiered.Limited.String())
			send(float64(p.Tokens.FallbackSpent), tiered.FallbackSpent.String())
			send(float64(p.Tokens.Unavailable), tiered.Unavailable.String())
			send(float64(p.Tokens.Blocked), blocked)
		}),
	only(Counter, "tiered_shadowed_tokens_total", "{token}",
		"Refused tokens that were admitted, because the policy is only tried out.",
		func(p tiered.PolicyStats) int64 { return p.Tokens.Shadowed }),
	only(Counter, "tiered_granted_tokens_total", "{token}",
		"Tokens that Redis granted: the outcomes of leased tokens and the held ones.",
		func(p tiered.PolicyStats) int64 { return p.Leases.Granted }),
	several(Counter, "tiered_leased_tokens_total", "{token}",
		"Tokens that Redis granted, by what became of them.", []string{"outcome"},
		func(p tiered.PolicyStats, send func(float64, ...string)) {
			send(float64(p.Leases.Spent), "spent")
			send(float64(p.Leases.Returned), "returned")
			send(float64(p.Leases.Burnt), "burnt")
		}),
	only(UpDown, "tiered_held_tokens", "{token}", "Tokens that Redis granted and that the process holds now.",
		func(p tiered.PolicyStats) int64 { return p.Leases.Held }),
	only(Counter, "tiered_near_limit_tokens_total", "{token}",
		"Tokens admitted while less than a fifth of the burst was left.",
		func(p tiered.PolicyStats) int64 { return p.Tokens.NearLimit }),
	only(Counter, "tiered_reported_tokens_total", "{token}",
		"Tokens admitted while Redis did not answer, and reported to it since.",
		func(p tiered.PolicyStats) int64 { return p.Costs.Settled }),
	only(Counter, "tiered_charged_tokens_total", "{token}",
		"Tokens charged afterwards, besides those that were leased.",
		func(p tiered.PolicyStats) int64 { return p.Costs.Charged }),
	only(Counter, "tiered_forgiven_tokens_total", "{token}",
		"Tokens admitted while Redis did not answer that no key pays for.",
		func(p tiered.PolicyStats) int64 { return p.Costs.Forgiven }),
	only(Counter, "tiered_unanswered_tokens_total", "{token}", "Tokens requested by calls without an answer.",
		func(p tiered.PolicyStats) int64 { return p.Leases.Lost }),
	only(Counter, "tiered_rejected_calls_total", "{call}", "Calls that Redis rejected because of their key alone.",
		func(p tiered.PolicyStats) int64 { return p.Faults.Rejected }),
	only(Counter, "tiered_per_key_faults_total", "{fault}",
		"Times that PerKey or a request gave a limit that is not valid.",
		func(p tiered.PolicyStats) int64 { return p.Faults.PerKey }),
	only(Counter, "tiered_unknown_plans_total", "{request}",
		"Requests with a plan that the policy does not have. The policy's own limit decided.",
		func(p tiered.PolicyStats) int64 { return p.Faults.UnknownPlans }),
	durations("tiered_redis_wait_seconds",
		"Time that requests waited for Redis. Those decided in the process are not in it.",
		func(p tiered.PolicyStats) Durations { return p.RedisTime }),
	only(UpDown, "tiered_waiting_calls", "{call}", "Calls of Wait that wait now.",
		func(p tiered.PolicyStats) int64 { return p.Waiting.Now }),
	several(Counter, "tiered_wait_calls_total", "{call}",
		"Calls of Wait that had to wait, by how they ended.", []string{"outcome"},
		func(p tiered.PolicyStats, send func(float64, ...string)) {
			send(float64(p.Waiting.Admitted), "admitted")
			send(float64(p.Waiting.GaveUp), "gave up")
		}),
	only(Counter, "tiered_wait_call_seconds_total", "s", "Total time of calls of Wait that had to wait.",
		func(p tiered.PolicyStats) float64 { return p.Waiting.Time.Seconds() }),
	only(Gauge, "tiered_longest_wait_call_seconds", "s", "The longest time of a call of Wait since the start.",
		func(p tiered.PolicyStats) float64 { return p.Waiting.Longest.Seconds() }),
	only(Counter, "tiered_refunded_tokens_total", "{token}",
		"Tokens that requests gave back. They are in the tokens that were requested and granted.",
		func(p tiered.PolicyStats) int64 { return p.Costs.Refunded }),
	only(Gauge, "tiered_processes", "{process}", "Processes that share the limits of the policy.",
		func(p tiered.PolicyStats) int64 { return p.Processes.Sharing }),
	only(Gauge, "tiered_other_service_processes", "{process}",
		"Of these: another service's, with a policy of this name and other limits.",
		func(p tiered.PolicyStats) int64 { return p.Processes.OtherServices }),
	only(Gauge, "tiered_other_limit_processes", "{process}",
		"Of these: this service's, with other limits, as during a deploy.",
		func(p tiered.PolicyStats) int64 { return p.Processes.OtherLimits }),
	only(Counter, "tiered_standing_tokens_total", "{token}", "Tokens admitted by standing shares.",
		func(p tiered.PolicyStats) int64 { return p.Standing.Spent }),
	only(Gauge, "tiered_standing_outside_processes", "{process}",
		"Processes that do not split the limit, so no standing share is used.",
		func(p tiered.PolicyStats) int64 { return p.Standing.Outside }),
}

// breakerStates are the values of Breaker in [tiered.NodeStats].
var breakerStates = []string{"closed", "open", "probing"}

var ofNode = []reading[tiered.NodeStats]{
	several(Counter, "tiered_redis_calls_total", "{call}",
		"Calls to a Redis node by outcome. Several share a round trip.", []string{"outcome"},
		func(n tiered.NodeStats, send func(float64, ...string)) {
			send(float64(max(n.Calls.Sent-n.Calls.Failed, 0)), "answered")
			send(float64(n.Calls.Saturated), "saturated")
			send(float64(n.Calls.CannotServe), "cannot serve")
			send(float64(n.Calls.Misconfigured), "misconfigured")
			send(float64(max(n.Calls.Failed-n.Calls.Saturated-n.Calls.CannotServe-n.Calls.Misconfigured, 0)), "other failure")
		}),
	durations("tiered_redis_round_trip_seconds",
		"Round trips to a Redis node that were answered.",
		func(n tiered.NodeStats) Durations { return n.Calls.RoundTrips }),
	several(Gauge, "tiered_breaker_state", "",
		"1 for the state of the breaker, 0 for the others.", []string{"state"},
		func(n tiered.NodeStats, send func(float64, ...string)) {
			for _, state := range breakerStates {
				send(truth(n.Outages.Breaker == state), state)
			}
		}),
	several(Gauge, "tiered_last_outage_info", "",
		"1, with what opened the breaker last. There is none before the first outage.", []string{"cause"},
		func(n tiered.NodeStats, send func(float64, ...string)) {
			if n.Outages.Cause != "" {
				send(1, cleaned(n.Outages.Cause))
			}
		}),
	several(Counter, "tiered_breaker_changes_total", "{change}",
		"Changes of the breaker, by its new state.", []string{"state"},
		func(n tiered.NodeStats, send func(float64, ...string)) {
			for i, times := range []int64{n.Outages.Ended, n.Outages.Count + n.Outages.Reopened, n.Outages.Probed} {
				send(float64(times), breakerStates[i])
			}
		}),
	only(Counter, "tiered_outages_total", "{outage}", "Times that the breaker opened.",
		func(n tiered.NodeStats) int64 { return n.Outages.Count }),
	only(Counter, "tiered_outage_seconds_total", "s", "Time in which the breaker was not closed.",
		func(n tiered.NodeStats) float64 { return n.Outages.Time.Seconds() }),
	only(Counter, "tiered_overruns_total", "{request}",
		"Decisions that waited for an answer until Budget was over: the fail mode decided.",
		func(n tiered.NodeStats) int64 { return n.Calls.Overruns }),
	only(Counter, "tiered_late_replies_total", "{reply}", "Answers after Timeout.",
		func(n tiered.NodeStats) int64 { return n.Calls.LateReplies }),
	only(Counter, "tiered_late_calls_total", "{call}",
		"Calls that reached Redis after their deadline and did nothing.",
		func(n tiered.NodeStats) int64 { return n.Calls.Late }),
	only(Counter, "tiered_stale_calls_total", "{call}",
		"Calls that did nothing because a newer call had overtaken them.",
		func(n tiered.NodeStats) int64 { return n.Calls.Stale }),
	only(Counter, "tiered_state_losses_total", "{reply}",
		"Replies that showed that Redis had lost a bucket or the last writes to it.",
		func(n tiered.NodeStats) int64 { return n.Faults.StateLosses }),
	only(Counter, "tiered_clock_steps_total", "{step}", "Times that the clock of the node was set by 50 ms or more.",
		func(n tiered.NodeStats) int64 { return n.Faults.ClockSteps }),
	only(Counter, "tiered_clock_set_back_buckets_total", "{bucket}",
		"Buckets whose time was set back, because the clock of the node was.",
		func(n tiered.NodeStats) int64 { return n.Faults.ClockBack }),
	only(Gauge, "tiered_node_processes", "{process}",
		"Processes that are present on the node, whatever their policies are.",
		func(n tiered.NodeStats) int64 { return n.Processes }),
	only(Counter, "tiered_unrecorded_presence_reports_total", "{report}",
		"Presence reports of this process that the node did not record, though its breaker was closed.",
		func(n tiered.NodeStats) int64 { return n.Faults.Absences }),
}
