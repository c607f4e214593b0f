package sim_test

import (
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// policy is what the service under test uses.
var policy = tiered.Policy{Name: "checkout", Limit: tiered.PerSecond(200).WithBurst(400)}

// In your own tests: a scenario of the library or of a file, and your own policy. Policies are
// matched by name, and a single policy with a single limit needs no match.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestOutage(t *testing.T)
		r, err := sim.Run(sim.MustLoad("testdata/checkout.yaml"), &sim.Options{Policies: []tiered.Policy{policy}})
		if err != nil || !r.Passed {
			t.Fatal(err, r)
		}
	}
}

// The example, run.
func TestOutage(t *testing.T) {
	r, err := sim.Run(sim.MustLoad("testdata/checkout.yaml"), &sim.Options{Policies: []tiered.Policy{policy}})
	if err != nil || !r.Passed {
		t.Fatal(err, r)
	}
}

// It would fail: a policy that breaks what the scenario expects does.
func TestOutageOfAnother(t *testing.T) {
	other := policy
	other.FailMode = tiered.FailClosed
	r, err := sim.Run(sim.MustLoad("testdata/checkout.yaml"), &sim.Options{Policies: []tiered.Policy{other}})
	if err != nil || r.Passed {
		t.Fatalf("%v: a shop that closes passed", err)
	}
}
