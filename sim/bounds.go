package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Check is one promise, and whether it was kept.
type Check struct {
	What  string  // what was measured, and its unit
	Value float64 // how much that was
	Most  float64 // how much it may be, +Inf for anything
	Why   string  // where Most comes from
}

// Passed reports whether the promise was kept.
func (c Check) Passed() bool { return c.Value <= c.Most }

const (
	// clockGrain is how much shorter an interval may look to Redis, which reckons in whole microseconds of its clock.
	clockGrain = 2 * time.Microsecond

	// levelGrain is what levels kept as doubles may be off, in tokens: far more than they are.
	levelGrain = 1e-6

	// recovery is how long after an outage its over-admission counts: breakers close within a second, and debts are
	// settled with the next call of their key.
	recovery = 10 * time.Second

	// recoveryShare bounds what the end of an outage adds to its own bound: those who are still alone admit from their
	// shares while others lease again. It is measured, not proved.
	recoveryShare = 1.5
)

// evidence is what the checks of a mode look at.
type evidence struct {
	mode      tiered.FailMode
	processes int
	fleet     int64 // the least number of processes that any of them knew of when the outage began
	limit     tiered.Limit
	budget    time.Duration
	outage    time.Duration

	// Over-admission: of the run, until the outage's end, from its begin to its recovery, and later (NaN where the run
	// ends before).
	whole, alone, recovering, later float64

	longest   time.Duration
	without   int64 // admissions without Redis
	uncounted int64 // admissions that Stats do not have, or that were none
}

// checks holds a run against the promises of its fail mode.
func (e *evidence) checks() []Check {
	const beyond = "tokens beyond burst + rate*t"
	rate, c, n := perSecond(e.limit), float64(burst(e.limit)), float64(e.processes)
	grain := rate*clockGrain.Seconds() + levelGrain
	none := func(what string, value float64) Check { return Check{what, value, grain, "exact"} }

	var all []Check
	switch e.mode {
	case tiered.FailClosed:
		all = append(all, none(beyond+", in any interval", e.whole))
	case tiered.FailLocal:
		extra, why := max(c, n), "max(burst, processes)"
		if short := n - float64(e.fleet); short > 0 && e.fleet > 0 {
			extra += rate * e.outage.Seconds() * short / float64(e.fleet)
			why += fmt.Sprintf(" + rate*t*(%d/%d - 1)", e.processes, e.fleet)
		}
		all = append(all,
			Check{beyond + ", until Redis is back", e.alone, extra + grain, why},
			Check{fmt.Sprintf("%s, from the outage to %s after", beyond, short(recovery)), e.recovering,
				recoveryShare*extra + grain, fmt.Sprintf("%g times that, as measured", recoveryShare)})
		if !math.IsNaN(e.later) {
			all = append(all, none(beyond+", later", e.later))
		}
	case tiered.FailOpen:
		all = append(all, Check{beyond + ", in any interval", e.whole, math.Inf(1), "it admits all that comes"})
	}
	return append(all,
		Check{"admissions that Stats do not count", float64(e.uncounted), 0, fmt.Sprintf("%d were made without Redis", e.without)},
		Check{"longest decision, ms", ms(e.longest), ms(e.budget), "Options.Budget"})
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// uncounted compares what callers saw with what Stats say: by how many tokens they differ.
func uncounted(seen map[tiered.Reason]int64, s tiered.PolicyStats) int64 {
	return abs(seen[tiered.Granted]-s.Spent) + abs(seen[tiered.Shared]-s.Shared) + abs(seen[tiered.Open]-s.Open) +
		abs(s.Granted-s.Spent-s.Returned-s.Burnt-s.Held)
}

func abs(n int64) int64 { return max(n, -n) }
