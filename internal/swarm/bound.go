package swarm

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Bound is the most that any key of a limit may admit beyond burst + rate·t, in any interval of a run, in tokens:
// +Inf where nothing is promised. It is what docs/internals/proof.md says of the faults that the scenario has. C is
// the burst, R the rate:
//
//   - A token, since what is compared are fractions. R·late, since a request is counted when it is decided and was granted
//     before: at most Budget, and less on a network that answers in time.
//   - C each time that Redis may have forgotten a bucket or its last writes: kill (it comes back empty), flush, evict,
//     failover. A failover during which the clock was set is a step of the clock as well.
//   - min(C, R·J) for a clock that jumps forward by J; nothing for one that goes back.
//   - For who stood still while it was decided, what a fleet can have under way at a time: at most C.
//   - fail-closed: nothing else. fail-open: no bound as soon as there is a fault.
//   - fail-local: the shares of all processes, which are full at best, once, and while some may be alone what these shares
//     refill. While Redis certainly serves nobody it is that refill beyond R: what Redis does not grant pays for the shares,
//     as debt. A process that came during the run may know of no other than Options.Processes.
//
// What is admitted without Redis is known after a run. Then the bound is [Granted] and that, in each fail mode.
func Bound(s *scenario.Scenario, limit int) float64 {
	bound := Granted(s, limit)
	switch {
	case s.Fleet.Mode == "closed" || len(s.Faults) == 0:
		return bound
	case s.Fleet.Mode == "open", s.Fleet.MaxKeys > 0: // a key that was forgotten comes back with a fresh share
		return math.Inf(1)
	}
	rate, burst := rateAndBurst(&s.Limits[limit])
	return bound + fallbackTokens(s, rate, burst, 1)
}

// Granted is the part of [Bound] that Redis grants: all but the fail mode's.
func Granted(s *scenario.Scenario, limit int) float64 {
	rate, burst := rateAndBurst(&s.Limits[limit])
	bound := 1 + rate*decisionDelay(s).Seconds()
	for i := range s.Faults {
		f := &s.Faults[i]
		switch f.Kind {
		case "kill", "flush", "evict", "failover":
			bound += burst
		case "clock":
			if by := time.Duration(f.By); by > 0 || oldClockReturns(s, f) {
				bound += min(burst, rate*by.Abs().Seconds())
			}
		case "pause":
			bound += min(burst, maxUnderWay(s, limit))
		}
	}
	return bound
}

// rateAndBurst returns a limit's rate in tokens per second, and its burst.
func rateAndBurst(l *scenario.Limit) (rate, burst float64) {
	return float64(l.Tokens) / time.Duration(l.Per).Seconds(), float64(cmp.Or(l.Burst, l.Tokens))
}

// decisionDelay returns the longest time from a grant in Redis to the decision that it is for.
func decisionDelay(s *scenario.Scenario) time.Duration {
	for i := range s.Faults {
		switch s.Faults[i].Kind {
		case "blackhole", "flap", "pause":
			return budgetOf(s)
		}
	}
	return min(maxRoundTrip(s), budgetOf(s))
}

// maxRoundTrip returns the longest round trip whose reply arrives.
func maxRoundTrip(s *scenario.Scenario) time.Duration {
	const tail = 20 // times the mean of an exponential distribution: beyond is once in 5·10⁸
	d := time.Duration(cmp.Or(s.Net.RTT, scenario.DefaultRTT)) + tail*time.Duration(s.Net.Jitter)
	for i := range s.Faults {
		if f := &s.Faults[i]; f.Kind == "latency" {
			d += time.Duration(f.Delay) + tail*time.Duration(f.Jitter)
		}
	}
	return d
}

// grace is how long after a fault a process may still decide alone:
//
//   - For a new connection and the first call over it: five round trips, to dial, for what go-redis says first, for a script that
//     Redis does not know, and for its text. A Budget may be less. They take no longer than Timeout, or they fail.
//   - Unless it only concerns what is in Redis or who is there: for a call that left before the end, Timeout, and when it was the
//     probe, or one of three that failed, the longest that a breaker is open.
//
// Then each key asks Redis with its next request.
func grace(s *scenario.Scenario, f *scenario.Fault) time.Duration {
	const longestOpen = time.Second
	timeout := cmp.Or(time.Duration(s.Fleet.Timeout), max(tiered.DefaultTimeout, budgetOf(s)))
	connect := min(5*maxRoundTrip(s), timeout)
	switch f.Kind {
	case "flush", "evict", "scriptflush", "crash", "crashloop", "deploy", "scale":
		return connect
	}
	return timeout + longestOpen + connect
}

func budgetOf(s *scenario.Scenario) time.Duration {
	return cmp.Or(time.Duration(s.Fleet.Budget), tiered.DefaultBudget)
}

// maxUnderWay returns how many tokens of a limit may be asked for within a Budget: five standard deviations beyond the
// mean.
func maxUnderWay(s *scenario.Scenario, limit int) float64 {
	n, most := 0.0, 1.0
	for i := range s.Traffic {
		t := &s.Traffic[i]
		if t.Limit != "" && t.Limit != s.Limits[limit].Name {
			continue
		}
		rate := max(t.Rate, t.To)
		if t.Shape == "bursts" {
			rate *= float64(t.Every) / float64(t.For)
		}
		n += rate*budgetOf(s).Seconds() + float64(t.Clients)
		most = max(most, float64(t.Cost), float64(t.MaxCost))
	}
	return (n + 5*math.Sqrt(n) + 1) * most
}

// oldClockReturns reports whether the clock is set while a replica lags behind that takes over later: it has the old
// clock.
func oldClockReturns(s *scenario.Scenario, clock *scenario.Fault) bool {
	return slices.ContainsFunc(s.Faults, func(f scenario.Fault) bool {
		return f.Kind == "failover" && clock.At >= f.At-f.Lose && clock.At <= f.At+f.For
	})
}

// fallbackTokens returns the most that all shares of a key admit. What Redis certainly does not grant meanwhile is
// subtracted: spared is that part of the rate, 1 or, for all tokens that are admitted by the fail mode, 0.
func fallbackTokens(s *scenario.Scenario, rate, burst, spared float64) float64 {
	most, joined := fleetSizes(s)
	known := max(float64(s.Fleet.N), float64(s.Fleet.Processes)) // what those of the beginning have counted
	floor := max(1, float64(s.Fleet.Processes))                  // what others may be left with
	part := func(n float64) float64 { return max(1, math.Floor(burst/n)) }
	shares := float64(s.Fleet.N)*part(known) + float64(joined)*part(floor)

	// The parts of the limit that one refills at most, and all of them.
	one, all := 1/known, float64(s.Fleet.N)/known
	if joined > 0 {
		one = max(one, 1/floor)
		all = min(all+float64(joined)/floor, float64(most)*one)
	}
	var edges []time.Duration
	for i := range s.Faults {
		f := &s.Faults[i]
		edges = append(edges, time.Duration(f.At), endOf(s, f), endOf(s, f)+grace(s, f))
	}
	slices.Sort(edges)
	refill := 0.0
	for i := range len(edges) - 1 {
		from, to := edges[i], edges[i+1]
		silent, some := false, 0.0
		for j := range s.Faults {
			f := &s.Faults[j]
			if time.Duration(f.At) > from || endOf(s, f)+grace(s, f) <= from {
				continue
			}
			silent = silent || servesNobody(f) && from < endOf(s, f)
			some += cutOffAtOnce(s, f, most)
		}
		if silent {
			refill += rate * max(0, all-spared) * (to - from).Seconds()
		} else {
			refill += rate * min(all, some*one) * (to - from).Seconds()
		}
	}
	return shares + refill
}

// fleetSizes returns the largest number of processes at one time, and how many join during the run.
func fleetSizes(s *scenario.Scenario) (most, joined int) {
	most = s.Fleet.N
	for i := range s.Faults {
		most = max(most, s.Faults[i].N)
	}
	for i := range s.Faults {
		f := &s.Faults[i]
		switch f.Kind {
		case "scale", "deploy":
			joined += most
		case "crash":
			joined += int(concerned(f, most))
		case "crashloop":
			joined += int(concerned(f, most)) * (1 + int((endOf(s, f)-time.Duration(f.At))/time.Duration(f.Every)))
		}
	}
	return most, joined
}

// concerned returns how many processes a fault concerns at most.
func concerned(f *scenario.Fault, most int) float64 {
	switch {
	case f.Procs.Count > 0:
		return float64(f.Procs.Count)
	case f.Procs.Share > 0:
		return math.Ceil(f.Procs.Share * float64(most))
	}
	return float64(most)
}

// cutOffAtOnce returns how many processes a fault cuts off from Redis at one time, at most.
func cutOffAtOnce(s *scenario.Scenario, f *scenario.Fault, most int) float64 {
	switch f.Kind {
	case "flush", "evict", "scriptflush": // everybody, for a call that takes longer than Budget
	case "deploy": // who is new, and has no connection yet
		return min(float64(most), 1+math.Ceil(float64(grace(s, f))/float64(f.Every)))
	}
	return concerned(f, most)
}

// servesNobody reports whether Redis grants nothing while a fault lasts.
func servesNobody(f *scenario.Fault) bool {
	switch f.Kind {
	case "kill", "freeze", "refuse", "failover":
		return true
	case "blackhole":
		return f.Procs == scenario.Part{} && f.Only != "replies"
	case "cut":
		return f.Procs == scenario.Part{} && (f.Chance == 0 || f.Chance == 1)
	}
	return false
}

// endOf returns when a fault is over, and what it broke is up again.
func endOf(s *scenario.Scenario, f *scenario.Fault) time.Duration {
	at := time.Duration(f.At)
	switch {
	case f.For > 0:
		return at + time.Duration(f.For)
	case f.Kind == "deploy":
		most := s.Fleet.N
		for i := range s.Faults {
			most = max(most, s.Faults[i].N)
		}
		return at + time.Duration(f.Every)*time.Duration(most)
	case f.Kind == "crash":
		return at + time.Duration(f.Restart)
	case scenario.Lasts(f.Kind):
		return time.Duration(s.Length)
	}
	return at
}
