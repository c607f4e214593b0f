package sim_test

import (
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// most is how many processes a fleet has here: four fleets of real ones share two processors.
const most = 8

// scaled is a scenario with a fleet of at most so many processes: it, and what it grows to, in proportion. Rates
// and limits stay as they are, so each process has more of them.
func scaled(s *scenario.Scenario) *scenario.Scenario {
	s = s.Clone()
	n := s.Fleet.N
	if n <= most {
		return s
	}
	s.Fleet.N = most
	if s.Fleet.Processes > 0 {
		s.Fleet.Processes = max(1, s.Fleet.Processes*most/n)
	}
	for i := range s.Faults {
		if f := &s.Faults[i]; f.N > 0 {
			f.N = max(1, f.N*most/n)
		}
	}
	return s
}

func TestScaled(t *testing.T) {
	s, err := sim.Load("scale-in-outage")
	if err != nil {
		t.Fatal(err)
	}
	if got := scaled(s); got.Fleet.N != 8 || got.Fleet.Processes != 8 || got.Faults[1].N != 16 || s.Fleet.N != 20 {
		t.Errorf("%v", got)
	}
	for _, name := range sim.Library() {
		s, err := sim.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := scaled(s).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
