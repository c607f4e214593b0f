package sim_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// fewest is how many scenarios there are at least.
const fewest = 45

// Each scenario is valid, teaches something, promises something that could be broken, and is of a
// size for every day.
func TestLibrary(t *testing.T) {
	names := sim.Library()
	if len(names) < fewest {
		t.Errorf("%d scenarios, want %d at least", len(names), fewest)
	}
	swept := 0
	titles, kinds, shapes, metrics := map[string]string{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			s := fatal.Get(sim.Load(name))(t)
			if s.Learn == "" || len(s.Expect) == 0 || len(s.Sometimes) == 0 {
				t.Errorf("it lacks what it teaches, what it expects, or what must happen:\n%s", s)
			}
			if other := titles[s.Name]; other != "" {
				t.Errorf("it is called as %s is", other)
			}
			titles[s.Name] = name
			if s.Length > scenario.Duration(time.Minute) || s.Fleet.N > 50 {
				t.Errorf("%v with %d processes: that is much for every run of the tests", s.Length, s.Fleet.N)
			}
			bounds := map[string]bool{}
			for _, e := range s.Expect {
				bounds[e.Metric], metrics[e.Metric] = true, true
			}
			if !bounds["unaccounted"] {
				t.Error("it does not bound unaccounted, which must be 0 whatever happens")
			}
			if s.Fleet.Mode != "open" && !bounds["over_admission"] {
				t.Error("it does not bound over_admission")
			}
			for _, f := range s.Faults {
				kinds[f.Kind] = true
			}
			for _, r := range s.Traffic {
				shapes[r.Shape] = true
			}
			cells(t, s, s.Sweep)
			if len(s.Sweep) > 0 {
				swept++
			}
		})
	}
	if swept < 20 {
		t.Errorf("only %d scenarios have axes", swept)
	}
	for _, k := range scenario.Kinds {
		if !kinds[k.Name] {
			t.Errorf("no scenario has the fault %s", k.Name)
		}
	}
	for _, s := range scenario.Shapes {
		if !shapes[s.Name] {
			t.Errorf("no scenario has traffic of the shape %s", s.Name)
		}
	}
	for _, m := range scenario.Metrics {
		if !metrics[m.Name] {
			t.Errorf("no scenario bounds %s", m.Name)
		}
	}
}

// cells makes sure that every combination of the values of all axes gives a valid scenario.
func cells(t *testing.T, s *scenario.Scenario, axes []scenario.Axis) {
	t.Helper()
	if len(axes) == 0 {
		fatal.If(t, s.Validate())
		return
	}
	for _, v := range axes[0].Values {
		c := s.Clone()
		fatal.If(t, c.Set(axes[0].Path, v))
		cells(t, c, axes[1:])
	}
}

// Every scenario of the library keeps what it expects, and what it says must happen does.
func TestLibraryPasses(t *testing.T) {
	if testing.Short() {
		t.Skip("twenty seconds")
	}
	var all []*scenario.Scenario
	for _, name := range sim.Library() {
		all = append(all, sim.MustLoad(name))
	}
	reports := fatal.Get(sim.RunAll(all, nil))(t)
	for i, r := range reports {
		if !r.Passed {
			t.Errorf("%s: %v", sim.Library()[i], r)
		}
	}
}
