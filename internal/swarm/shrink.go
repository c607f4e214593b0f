package swarm

import (
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// maxTries bounds how many smaller scenarios are tried: about ten seconds.
const maxTries = 150

// shrink looks for a smaller scenario that breaks the same promise. It takes the first change that does, and begins
// again, until none is left.
func (run runner) shrink(f *Failure) {
	for from := 0; ; {
		all := smaller(f.Scenario)
		found := false
		for i := range all {
			// What did not help before the last change probably does not now: begin with the others.
			at := (from + i) % len(all)
			c := all[at]
			if f.Tries == maxTries {
				return
			}
			f.Tries++
			if _, b, err := run.try(c); err == nil && b.what == f.What {
				f.Scenario, f.Why, from, found = c, b.why, at, true
				break
			}
		}
		if !found {
			return
		}
	}
}

// smaller returns scenarios that are a little smaller, the most promising first. Some may not be valid.
func smaller(s *scenario.Scenario) (all []*scenario.Scenario) {
	but := func(change func(c *scenario.Scenario)) {
		c := s.Clone()
		c.Expect = nil
		change(c)
		all = append(all, c)
	}
	for n := len(s.Faults); n > 0; n /= 2 { // all of them, halves, …, single ones
		for from := 0; from < len(s.Faults); from += n {
			but(func(c *scenario.Scenario) { c.Faults = slices.Delete(c.Faults, from, min(from+n, len(c.Faults))) })
		}
	}
	if len(s.Limits) > 1 {
		for i := range s.Limits {
			but(func(c *scenario.Scenario) {
				name := c.Limits[i].Name
				c.Limits = slices.Delete(c.Limits, i, i+1)
				c.Traffic = slices.DeleteFunc(c.Traffic, func(t scenario.Traffic) bool { return t.Limit == name })
			})
		}
	}
	for i := range s.Traffic {
		if len(s.Traffic) > 1 {
			but(func(c *scenario.Scenario) { c.Traffic = slices.Delete(c.Traffic, i, i+1) })
		}
	}
	for _, n := range []int{1, s.Fleet.N / 2, s.Fleet.N - 1} {
		if n >= 1 && n < s.Fleet.N {
			but(func(c *scenario.Scenario) { c.Fleet.N = n; fit(c) })
		}
	}
	all = append(all, simpler(s)...)
	for i := range s.Faults {
		all = append(all, shorter(s, i)...)
	}
	but(func(c *scenario.Scenario) { // all of it sooner
		first := time.Duration(c.MeasuredFrom())
		for i := range c.Faults {
			at := first + (time.Duration(c.Faults[i].At)-first)/2
			c.Faults[i].At = scenario.Duration(at.Truncate(100 * time.Millisecond))
		}
	})
	return slices.DeleteFunc(all, func(c *scenario.Scenario) bool { return slices.Equal(lines(c), lines(s)) })
}

// lines returns what tells two scenarios apart.
func lines(s *scenario.Scenario) []string {
	c := s.Clone()
	c.Expect, c.Length = nil, 0
	return []string{c.String()}
}

// fit keeps faults within a fleet that became smaller.
func fit(s *scenario.Scenario) {
	for i := range s.Faults {
		f := &s.Faults[i]
		f.Procs.Count = min(f.Procs.Count, s.Fleet.N)
		f.N = min(f.N, 2*s.Fleet.N)
	}
}

// simpler returns scenarios with something left out of the fleet, the traffic or the network.
func simpler(s *scenario.Scenario) (all []*scenario.Scenario) {
	but := func(change func(c *scenario.Scenario)) {
		c := s.Clone()
		c.Expect = nil
		change(c)
		all = append(all, c)
	}
	but(func(c *scenario.Scenario) {
		c.Fleet = scenario.Fleet{N: c.Fleet.N, Mode: c.Fleet.Mode, Processes: c.Fleet.Processes}
	})
	but(func(c *scenario.Scenario) { c.Fleet.Size = 0 })
	but(func(c *scenario.Scenario) { c.Fleet.Period = 0 })
	but(func(c *scenario.Scenario) { c.Fleet.Budget, c.Fleet.Timeout = 0, 0 })
	but(func(c *scenario.Scenario) { c.Fleet.MaxKeys = 0 })
	but(func(c *scenario.Scenario) { c.Fleet.Processes = 0 })
	but(func(c *scenario.Scenario) { c.Net = scenario.Net{} })
	but(func(c *scenario.Scenario) { c.Net.Jitter = 0 })
	for i := range s.Traffic {
		but(func(c *scenario.Scenario) {
			t := &c.Traffic[i]
			*t = scenario.Traffic{Shape: "poisson", Limit: t.Limit, Rate: max(t.Rate, t.To, 1), Keys: t.Keys}
		})
		for _, clear := range []func(t *scenario.Traffic){
			func(t *scenario.Traffic) { t.Keys, t.KeySkew = 0, 0 },
			func(t *scenario.Traffic) { t.ProcSkew, t.KeySkew = 0, 0 },
			func(t *scenario.Traffic) { t.Cost, t.MaxCost = 0, 0 },
			func(t *scenario.Traffic) { t.Cancel, t.Retry = 0, 0 },
			func(t *scenario.Traffic) { t.Rate = float64(int(t.Rate / 2)) },
			func(t *scenario.Traffic) { t.Clients /= 2 },
		} {
			but(func(c *scenario.Scenario) { clear(&c.Traffic[i]) })
		}
	}
	return all
}

// shorter returns scenarios in which a fault is shorter or simpler.
func shorter(s *scenario.Scenario, i int) (all []*scenario.Scenario) {
	but := func(change func(f *scenario.Fault)) {
		c := s.Clone()
		c.Expect = nil
		change(&c.Faults[i])
		slices.SortStableFunc(c.Faults, func(a, b scenario.Fault) int { return int(a.At - b.At) })
		all = append(all, c)
	}
	half := func(d scenario.Duration) scenario.Duration {
		return scenario.Duration((time.Duration(d) / 2).Truncate(time.Millisecond))
	}
	round := func(d scenario.Duration) scenario.Duration {
		return scenario.Duration(time.Duration(d).Round(500 * time.Millisecond))
	}
	f := &s.Faults[i]
	if f.For > 0 {
		but(func(f *scenario.Fault) { f.For = half(f.For) })
		if r := round(f.For); r > 0 && r <= f.For {
			but(func(f *scenario.Fault) { f.For = r })
		}
	}
	but(func(f *scenario.Fault) { f.At = max(round(f.At), s.MeasuredFrom()) })
	but(func(f *scenario.Fault) { f.Procs = scenario.Part{} })
	but(func(f *scenario.Fault) { f.Procs.Count /= 2 })
	but(func(f *scenario.Fault) { f.Chance, f.Jitter, f.Only = 0, 0, "" })
	but(func(f *scenario.Fault) { f.Keys /= 2 })
	but(func(f *scenario.Fault) { f.Lose = half(f.Lose) })
	but(func(f *scenario.Fault) { f.Restart = half(f.Restart) })
	but(func(f *scenario.Fault) { f.Delay = half(f.Delay) })
	but(func(f *scenario.Fault) { f.By = half(f.By) })
	return all
}
