package swarm

import (
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// How long what comes after the last fault is.
const (
	settling = 5 * time.Second  // until all must be as if nothing had been
	quiet    = 10 * time.Second // of that
)

// By how much less a limit may be used once all is healed than if nothing had happened: 5 %, and what of a burst
// may lie on this or the other side of the beginning, up to 10 % in all.
const (
	less     = 0.05
	mostLess = 0.1
)

// Expect gives a scenario its length and replaces its expectations by the promises that hold whatever goes wrong. After
// the last fault come five seconds to settle and ten that are quiet. A fault that lasts must have an end (for=).
//
// used is how much of each limit is used in the quiet part when nothing goes wrong, by its utilisation; nil where
// that is not known, negative where it cannot be told.
func Expect(s *scenario.Scenario, used []float64) {
	healed, pauses := time.Duration(s.MeasuredFrom()), time.Duration(0)
	for i := range s.Faults {
		f := &s.Faults[i]
		healed = max(healed, endOf(s, f))
		if f.Kind == "pause" {
			pauses += time.Duration(f.For)
		}
	}
	calm := scenario.Duration((healed + settling).Truncate(time.Millisecond))
	s.Length = calm + scenario.Duration(quiet)
	s.Expect, s.Sometimes, s.Sweep = nil, nil, nil
	expect := func(metric, op string, value float64, after scenario.Duration, limit string) {
		s.Expect = append(s.Expect, scenario.Expectation{
			Metric: metric, Op: op, Value: value, After: after,
			Limit: limit,
		})
	}
	expect("unaccounted", "<=", 0, 0, "")
	// Who stands still decides late, and gets his answer when he goes on.
	expect("decide_max", "<=", (budgetOf(s) + pauses + time.Millisecond).Seconds(), 0, "")
	expect("decide_max", "<=", (budgetOf(s) + time.Millisecond).Seconds(), calm, "")
	for i := range s.Limits {
		expect("alone", "<=", 0, calm, s.Limits[i].Name)
	}
	healthy := *s
	healthy.Faults = nil
	for i := range s.Limits {
		name := s.Limits[i].Name
		rate, burst := rateAndBurst(&s.Limits[i])
		if over := Bound(s, i); !math.IsInf(over, 1) {
			expect("over_admission", "<=", math.Ceil(over), 0, name)
		}
		expect("over_admission", "<=", math.Ceil(Bound(&healthy, i)), calm, name)
		switch {
		case s.Fleet.Mode == "closed" || len(s.Faults) == 0:
			expect("alone", "<=", 0, 0, name)
		case s.Fleet.Mode != "open" && s.Fleet.MaxKeys == 0 && oneKey(s, name):
			expect("alone", "<=", math.Ceil(fallbackTokens(s, rate, burst, 0)), 0, name)
		}
		if used != nil && used[i] > mostLess {
			least := used[i] - min(mostLess, less+burst/(rate*quiet.Seconds()))
			expect("utilisation", ">=", math.Floor(1000*least)/1000, calm, name)
		}
	}
}

// oneKey reports whether all requests of a limit are for one key.
func oneKey(s *scenario.Scenario, limit string) bool {
	return !slices.ContainsFunc(s.Traffic, func(t scenario.Traffic) bool {
		return (t.Limit == "" || t.Limit == limit) && t.Keys != 0 && t.Keys != 1
	}) && !slices.ContainsFunc(s.Faults, func(f scenario.Fault) bool { // which is of the first limit
		return f.Kind == "flood" && s.Limits[0].Name == limit
	})
}

// withoutFaults returns a scenario of which [Expect] has made one of the swarm, without its faults, except that the
// fleet changes its size. Its only expectation asks how much of each limit is used in the quiet part.
func withoutFaults(s *scenario.Scenario) *scenario.Scenario {
	c := s.Clone()
	c.Faults = slices.DeleteFunc(c.Faults, func(f scenario.Fault) bool {
		return f.Kind != "scale" && (f.Kind != "crash" || f.Restart > 0)
	})
	c.Expect = nil
	for i := range s.Limits {
		c.Expect = append(c.Expect, scenario.Expectation{
			Metric: "utilisation", Op: ">=", After: s.Length - scenario.Duration(quiet), Limit: s.Limits[i].Name,
		})
	}
	return c
}
