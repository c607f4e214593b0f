package main

import (
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim"
)

// A sweep of a scenario that comes with the simulator does not fail: nothing is wrong there. Scenarios without axes of
// their own have nothing to sweep.
func TestSweepLibrary(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of two processors")
	}
	swept := 0
	for _, name := range sim.Library() {
		s, err := sim.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Sweep) == 0 {
			continue
		}
		swept++
		t.Run(name, func(t *testing.T) {
			if out, problems, status := run(t, "sweep", name); status != passed {
				t.Errorf("status %d, %q\n%s", status, problems, out)
			}
		})
	}
	if swept < 20 {
		t.Errorf("only %d scenarios have axes", swept)
	}
}
