package picture_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// search is what tiersim tune has: few choices of many combinations, a policy and sums.
func search() *measure.Sweep {
	s := sweepOf([3]float64{10, 5, 1}, [3]float64{90, 1, 1}, [3]float64{95, 7, 0})
	s.Axes = append(s.Axes, scenario.Axis{Path: "fleet.mode", Values: []string{"local", "open", "closed"}})
	for i := range s.Cells {
		s.Cells[i].Values["fleet.mode"] = "local"
	}
	s.Policy = &measure.Policy{Limit: scenario.Limit{Name: "checkout", Tokens: 50, Per: scenario.Duration(time.Second), Burst: 80}}
	s.Expected = []measure.Expected{
		{Name: "held", What: "lease × <processes>", AtMost: true, Text: "50", MeasuredText: "37"},
		{Name: "detect", What: "trips × timeout", Text: "1.4s", MeasuredText: "1.6s"},
	}
	return s
}

// A search has all its choices in the table, and no map that is mostly holes; it says what the policy is for, and
// its sums.
func TestSearchPage(t *testing.T) {
	page := parse(t, drawSweep(t, search()))
	if n := len(find(page, "table", "map")); n > 0 {
		t.Errorf("%d maps of 3 choices among 9 combinations", n)
	}
	if n := len(find(find(page, "table", "choices")[0], "tr", "")); n != 4 {
		t.Errorf("%d rows for 3 choices", n-1)
	}
	if got := text(find(page, "h1", "")[0]); got != "A policy for checkout" {
		t.Errorf("the title is %q", got)
	}
	var headings []string
	for _, name := range []string{"h2", "h3"} {
		for _, h := range find(page, name, "") {
			headings = append(headings, text(h))
		}
	}
	for _, h := range find(find(page, "table", "estimate")[0], "th", "")[:3] {
		headings = append(headings, text(h))
	}
	if got := strings.Join(headings, "\n"); got != `Trade-offs
Estimated and measured
Run it again
Over-admission against Redis calls tokens beyond burst + rate × time, in the worst interval
Choices
With the advised settings
estimated
measured` {
		t.Errorf("the headings are\n%s", got)
	}
	all := text(page)
	for _, part := range []string{"50 tokens per 1s, burst 80", "lease × <processes>", "at most 50", "37", "about 1.4s", "1.6s", "tiersim run rehearsal.sim --seed"} {
		if !strings.Contains(all, part) {
			t.Errorf("no %q on the page", part)
		}
	}
	plain := search()
	plain.Axes, plain.Policy, plain.Expected = plain.Axes[:1], nil, nil
	page = parse(t, drawSweep(t, plain))
	if len(find(page, "table", "map")) != 3 || len(find(page, "table", "estimate")) > 0 || !strings.Contains(text(page), "tiersim sweep rehearsal.sim") {
		t.Error("a sweep is not what it was")
	}
}

// The name of a spot is on the side where there is room for it.
func TestSpotNames(t *testing.T) {
	var sides []string
	for _, spot := range find(find(parse(t, drawSweep(t, search())), "figure", "scatter")[0], "svg", "front") {
		sides = append(sides, attribute(find(spot, "text", "")[0], "text-anchor"))
	}
	if got := strings.Join(sides, ","); got != ",end" {
		t.Errorf("the names are anchored at %q", got)
	}
}
