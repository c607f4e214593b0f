package sim

import (
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Every scenario of the library keeps what it expects, and what it says must happen does.
func TestLibraryPasses(t *testing.T) {
	if testing.Short() {
		t.Skip("twenty seconds")
	}
	var all []*scenario.Scenario
	for _, name := range Library() {
		s, err := Load(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	reports, err := RunAll(all, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range reports {
		if !r.Passed {
			t.Errorf("%s: %v", Library()[i], r)
		}
	}
	if len(reports) < 45 {
		t.Errorf("only %d scenarios", len(reports))
	}
}
