package scenario

import (
	"slices"
	"strings"
)

// Kind is a kind of fault or of traffic, and the fields that it takes. Besides these all faults
// take at, and all traffic takes limit, keys, keyskew, procskew, cost, maxcost, runs and cancel.
type Kind struct {
	Name  string
	Takes []string // fields that may be given; with for a fault lasts, else it is over at once
	Needs []string // of these, those that must be
	What  string   // in a line
}

// Kinds are all faults, in the order in which `tiersim faults` lists them.
var Kinds = []Kind{
	kind("kill", "", "for", "Redis dies: connections are refused; with for it comes back empty"),
	kind("freeze", "", "for", "Redis stands still: requests lie in its buffers and are executed when it goes on"),
	kind("refuse", "error", "for", "Redis answers with an error: LOADING, READONLY, OOM, NOAUTH, …"),
	kind("blackhole", "", "procs only for", "the network swallows what is sent, or one direction of it"),
	kind("cut", "", "procs chance for", "requests are lost with their connections"),
	kind("lose", "", "procs chance for", "replies are lost after their requests were executed"),
	kind("latency", "delay", "procs jitter for", "round trips take longer"),
	kind("slow", "delay", "for", "the service is slow: requests that begin to run do so for longer"),
	kind("flap", "up down", "procs for", "the network is up and down in turn, down first"),
	kind("flush", "", "", "FLUSHALL: every bucket is forgotten"),
	kind("evict", "keys", "", "Redis forgets so many buckets at random"),
	kind("scriptflush", "", "", "SCRIPT FLUSH: the scripts have to be sent again"),
	kind("failover", "", "lose for", "a replica takes over that lacks the last writes; for is how long nobody serves"),
	kind("clock", "by", "", "the clock of Redis jumps"),
	kind("crash", "", "procs restart", "processes die with what they hold"),
	kind("crashloop", "every", "procs for", "the same processes die and come back again and again"),
	kind("pause", "", "procs for", "processes stand still (SIGSTOP, a long collection of garbage)"),
	kind("deploy", "every", "", "one process after the other is closed and replaced by a new one"),
	kind("scale", "n", "", "processes join, or leave in good order, until there are n"),
	kind("flood", "keys", "for", "so many keys that nobody has seen are asked for, spread over the time"),
}

// Lasts reports whether a kind of fault takes for and ends after it; without it lasts to the end.
func Lasts(kind string) bool {
	return slices.ContainsFunc(Kinds, func(k Kind) bool { return k.Name == kind && slices.Contains(k.Takes, "for") })
}

// Shapes are all kinds of traffic: how its rate changes.
var Shapes = []Kind{
	kind("poisson", "rate", "", "requests at random times, at the same rate all the time"),
	kind("bursts", "rate every for", "",
		"all requests of a period within a part of it: rate is the mean over the period"),
	kind("ramp", "rate to", "", "from rate at the start, evenly, to another at the end"),
	kind("diurnal", "rate to every", "", "a wave between the two rates, beginning at rate"),
	kind("closed", "clients", "think retry", "clients that ask, wait for the answer, think, and ask again; "+
		"one that is refused asks again after RetryAfter, at least after think"),
}

// kind is a Kind that needs some parameters, and may have others.
func kind(name, needs, may, what string) Kind {
	return Kind{Name: name, Takes: strings.Fields(needs + " " + may), Needs: strings.Fields(needs), What: what}
}

// Metric is something that an expectation may bound.
type Metric struct {
	Name string
	Unit Unit
	What string
}

// Unit says how a value of a metric is written, and what it is in an Expectation.
type Unit int

// The units.
const (
	Tokens  Unit = iota // 1000
	Ratio               // 5% or 0.05
	Seconds             // 1ms; in an Expectation seconds
	PerSec              // 500 or 500/s
	Count               // 80
)

// Metrics are all metrics; a report has each of them.
var Metrics = []Metric{
	{"over_admission", Tokens, "admitted beyond burst + rate·t in the worst interval of the worst key, or beyond the quota in its worst window " +
		"(exact); of several limits the worst"},
	{
		"shortfall", Ratio,
		"of what an ideal limiter admits of the same requests, what was not admitted: by seconds and limits, and " +
			"only where too little was",
	},
	{"denied_within", Ratio, "of the requests that an ideal limiter admits, those that were refused; not who left"},
	{"utilisation", Ratio, "admitted, of what an ideal limiter admits"},
	{"decide_p99", Seconds, "time of a decision: 99 of 100 are quicker (within 1 %)"},
	{"decide_max", Seconds, "time of the longest decision"},
	{"redis_calls", PerSec, "calls of the script; several share a round trip"},
	{"alone", Tokens, "admitted without Redis"},
	{"unaccounted", Tokens, "spent or held without a grant of Redis, or missing in Stats: must be 0"},
	{"at_once", Count, "requests of one key that ran at the same time, in all processes: the most"},
	{"full", Ratio, "of the requests that needed a place, those that got none; they count in no other metric but the times"},
	{"detect", Seconds, "from the beginning of a fault until the last breaker that opens has opened; the longest"},
	{"heal", Seconds, "from the end of a fault until all breakers are closed and none opens within a second; the longest"},
	{
		"recovered", Seconds,
		"from the end of the last fault until the admitted rate is within 5 % of the ideal for a second, or " +
			"over 400 tokens if these take longer",
	},
}

// UnitOf is the unit of a metric, Count of what is none.
func UnitOf(name string) Unit {
	if m, known := metric(name); known {
		return m.Unit
	}
	return Count
}

// Happenings are the words that `sometimes` may have. If one of them did not happen, the run has
// not shown what it is for.
var Happenings = []string{
	"breaker_open", "breaker_closed", "probe_failed", "lease_lost", "lease_burnt", "state_loss", "short_grant",
	"late_call", "stale_reply", "waited", "refused", "fallback", "fallback_spent", "opened", "unavailable", "canceled",
	"place_refused", "place_lost", "debt_settled", "evicted_locally", "clock_step", "process_died", "process_joined", "script_sent",
}

// names of a table.
func names[T any](table []T, name func(T) string) []string {
	all := make([]string, len(table))
	for i, t := range table {
		all[i] = name(t)
	}
	return all
}

func kindNames(all []Kind) []string { return names(all, func(k Kind) string { return k.Name }) }
func metricNames() []string         { return names(Metrics, func(m Metric) string { return m.Name }) }

// metric is the metric of that name.
func metric(name string) (m Metric, known bool) {
	if i := slices.Index(metricNames(), name); i >= 0 {
		return Metrics[i], true
	}
	return m, false
}
