package sim_test

import (
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// policy is what the service under test uses.
var policy = tiered.Policy{Name: "partner", Limit: tiered.PerSecond(50), FailMode: tiered.FailClosed}

// In your own tests: a scenario of the library or of a file, and your own policy. Policies are matched by name, and a single
// policy with a single limit needs no match.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestOutage(t *testing.T)
		r, err := sim.Run(t, sim.MustLoad("payments"), &sim.Options{Policies: []tiered.Policy{policy}})
		if err != nil || !r.Passed {
			t.Fatal(err, r)
		}
	}
}

// The example, run.
func TestOutage(t *testing.T) {
	r, err := sim.Run(t, sim.MustLoad("payments"), &sim.Options{Policies: []tiered.Policy{policy}})
	if err != nil || !r.Passed {
		t.Fatal(err, r)
	}
}

// It would fail: a policy that breaks what the scenario expects does.
func TestOutageOfAnother(t *testing.T) {
	other := policy
	other.FailMode = tiered.FailOpen
	r, err := sim.Run(t, sim.MustLoad("payments"), &sim.Options{Policies: []tiered.Policy{other}})
	if err != nil || r.Passed {
		t.Fatalf("%v: a fail-open partner passed", err)
	}
}
