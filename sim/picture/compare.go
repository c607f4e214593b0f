package picture

import (
	"cmp"
	"fmt"
	"html/template"
	"io"
	"slices"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// comparison is a page of several runs.
type comparison struct {
	Style        template.CSS
	Title, Learn string
	Runs         []*page
	Rows         []figure // a column for each run
}

// Compare writes one page of several runs, side by side on one scale. A run has the name of its
// fail mode if it is the only one with that, and otherwise the given one.
func Compare(w io.Writer, names []string, all []*measure.Report) error {
	first := scenario.Scenario{}
	if len(all) > 0 && all[0].Scenario != nil {
		first = *all[0].Scenario
	}
	c := &comparison{Style: template.CSS(styleText), Rows: figures[:tiles], Title: "Side by side"}
	if !slices.ContainsFunc(all, func(r *measure.Report) bool { return r.Scenario == nil || r.Scenario.Name != first.Name }) {
		c.Title, c.Learn = first.Name, first.Learn
	}
	called, lines := called(names, all), timelines(all)
	for i, r := range all {
		p := newPage(r)
		p.Of, p.First, p.Rest = called[i], nil, nil
		if t := lines[i]; t != nil {
			charts := t.charts(p.Scenario)
			p.First, p.Rest = charts[:1], charts[1:]
		}
		c.Runs = append(c.Runs, p)
	}
	return compareTemplate.Execute(w, c)
}

// RestRows is how many rows of the page the charts have that it does not begin with: a heading, and
// for each chart its caption, the plot and the legend.
func (p *page) RestRows() int { return 1 + 3*len(p.Rest) }

// timelines are those of reports, on one scale. One without a series is nil.
func timelines(all []*measure.Report) (lines []*timeline) {
	top := 0.0
	for i, r := range all {
		t := newTimeline(r, cmp.Or(r.Scenario, &scenario.Scenario{}))
		if t != nil {
			t.id, top = fmt.Sprintf("run%d-", i+1), max(top, t.highestRate())
		}
		lines = append(lines, t)
	}
	for _, t := range lines {
		if t != nil {
			t.top = top
		}
	}
	return lines
}

// called returns what runs are called.
func called(names []string, all []*measure.Report) (called []string) {
	for i, r := range all {
		name, mode := "", r.Modes()
		if i < len(names) {
			name = names[i]
		}
		alone := 0
		for _, other := range all {
			if other.Modes() == mode {
				alone++
			}
		}
		if alone == 1 || name == "" {
			name = mode
		}
		called = append(called, name)
	}
	return called
}
