package swarm

import (
	"cmp"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

const (
	trouble = 12_000 // ms in which faults begin, after the warm-up
	lasting = 8_000  // ms that one lasts at most
)

// faults draws one to six faults of one to four kinds, all of which end.
func (d drawer) faults(s *scenario.Scenario) {
	kinds := slices.Clone(scenario.Kinds)
	d.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	kinds = kinds[:d.between(1, 4)]
	s.Faults = nil
	for range d.between(1, 6) {
		k := pick(d, kinds...)
		f := scenario.Fault{At: scenario.Duration(warmUp) + d.millis(0, trouble), Kind: k.Name}
		if k.Lasts {
			f.For = d.millis(20, pick(d, 300, 2000, lasting))
		}
		for _, p := range k.Takes {
			d.parameter(&f, p, s.Fleet.N, slices.Contains(k.Needs, p))
		}
		s.Faults = append(s.Faults, f)
	}
	slices.SortStableFunc(s.Faults, func(a, b scenario.Fault) int { return cmp.Compare(a.At, b.At) })
}

// parameter draws one of a fault's.
func (d drawer) parameter(f *scenario.Fault, name string, processes int, needed bool) {
	if !needed && d.chance(0.4) {
		return
	}
	switch name {
	case "procs":
		if d.chance(0.5) {
			f.Procs.Count = d.between(1, processes)
		} else {
			f.Procs.Share = float64(d.between(1, 9)) / 10
		}
	case "only":
		f.Only = pick(d, "requests", "replies")
	case "chance":
		f.Chance = float64(d.between(1, 60)) / 100
	case "delay":
		f.Delay = d.millis(1, pick(d, 10, 40, 200))
	case "jitter":
		f.Jitter = d.millis(1, 20)
	case "up", "down":
		v := d.millis(50, 1500)
		if name == "up" {
			f.Up = v
		} else {
			f.Down = v
		}
	case "by":
		f.By = d.millis(10, pick(d, 500, 5000, 3_600_000))
		if d.chance(0.5) {
			f.By = -f.By
		}
	case "lose":
		f.Lose = d.millis(1, 3000)
	case "restart":
		f.Restart = d.millis(1, 3000)
	case "every":
		f.Every = d.millis(50, 1000)
		if f.For > 0 { // of a crash loop: a few rounds
			f.Every = max(f.Every, f.For/10)
			f.Every = scenario.Duration(time.Duration(f.Every).Truncate(time.Millisecond))
		}
	case "n":
		f.N = d.between(1, 2*processes)
	case "keys":
		f.Keys = int64(d.between(1, 400))
	case "error":
		f.Error = pick(d, "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "MISCONF", "OOM", "BUSY",
			"NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE")
	}
}
