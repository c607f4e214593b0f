package measure

import (
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Two reports side by side, the second without faults and with a hostile name. After a change:
// go test ./sim/measure -run TestSideBySide -update, and read the difference.
func TestSideBySide(t *testing.T) {
	calm := New(made(func(x *scenario.Scenario) { x.Faults = nil; x.Name = "calm" }, expecting("utilisation", ">=", 0.5, 0, 0)))
	ask(calm, 1*s, 0, 0, "k", 3, 3)
	other := calm.Report(30 * s)
	var b strings.Builder
	if err := SideBySide(&b, []string{"open", "ca\x1b[31mlm"}, []*Report{rehearsed(), other}, TextOptions{}); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsRune(b.String(), '\x1b') {
		t.Error("a name moves the cursor, or there are colors")
	}
	golden(t, "side.txt", b.String())
	b.Reset()
	if err := SideBySide(&b, []string{"open"}, []*Report{rehearsed()}, TextOptions{Color: true}); err != nil || !strings.Contains(b.String(), "\x1b[31mFAIL") {
		t.Errorf("%v: no colors", err)
	}
}

func TestSweepText(t *testing.T) {
	r := rehearsed()
	sweep := &Sweep{
		Schema: Schema, Scenario: r.Scenario, Seed: 7,
		Axes: []scenario.Axis{{Path: "fleet.mode", Values: []string{"open", "closed"}}, {Path: "fleet.n", Values: []string{"2"}}},
		Cells: []Cell{
			{Values: map[string]string{"fleet.mode": "open", "fleet.n": "2"}, Metrics: r.Metrics},
			{Values: map[string]string{"fleet.mode": "closed", "fleet.n": "2"}, Metrics: r.Metrics, Passed: true},
		},
	}
	var b strings.Builder
	if err := sweep.Text(&b, TextOptions{}); err != nil {
		t.Fatal(err)
	}
	golden(t, "sweep.txt", b.String())
	if !sweep.Passed() {
		t.Error("a sweep has failed because of a cell that is for comparison")
	}
	sweep.Cells[0].AsIs = true
	if sweep.Passed() {
		t.Error("a sweep has passed, and the scenario as it is has not")
	}
	sweep.Cells[0].Passed = true
	if !sweep.Passed() {
		t.Error("a sweep without a broken cell has not passed")
	}
}
