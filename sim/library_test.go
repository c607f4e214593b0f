package sim

import (
	"flag"
	"strings"
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
	reports, err := RunAll(t, all, nil)
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

var scenarios = flag.String("named", "", "`ENGINE:NAME,NAME,…` of the scenarios that TestNamedScenarios runs")

// Scenarios that the command line names, one after the other, up to the first that is broken: make scenario-mutants looks for
// one that shows a mistake.
func TestNamedScenarios(t *testing.T) {
	engine, names, _ := strings.Cut(*scenarios, ":")
	if names == "" {
		t.Skip("no -named")
	}
	for name := range strings.SplitSeq(names, ",") {
		s, err := Load(name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(t, s, &Options{Engine: engine})
		if err != nil || !r.Passed {
			t.Run(name, func(t *testing.T) { t.Fatalf("%v\n%v", err, r) })
			return
		}
	}
}
