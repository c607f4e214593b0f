package measure

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// compared are the metrics of tables with little room.
var compared = []string{
	"utilisation", "over_admission", "shortfall", "alone", "denied_within", "decide_p99", "decide_max", "redis_calls",
	"detect", "heal",
}

// SideBySide writes reports for a terminal, a column each under its name: the most telling metrics of each phase,
// and then the expectations of each. There must be as many names as reports.
func SideBySide(w io.Writer, names []string, all []*Report, o TextOptions) error {
	t := &text{o: o}
	head := []string{""}
	for i := range all {
		head = append(head, clean(names[i]))
	}
	for _, phase := range phasesOf(all) {
		t.line("%s", clean(phase.Name)+fmt.Sprintf(" (%s-%s)", lasting(phase.FromS), lasting(phase.ToS)))
		tab := t.table()
		writeRow(tab, head)
		for _, name := range compared {
			values := make([]float64, len(all))
			for i, r := range all {
				values[i] = -1
				if p := r.phase(phase.Name); p != nil {
					values[i] = p.Metrics.Value(name)
				}
			}
			metricRow(tab, name, scenario.UnitOf(name), values)
		}
		_ = tab.Flush()
		t.line("")
	}
	for i, r := range all {
		t.line("%s  %s: %s", t.verdict(r.Passed), clean(names[i]), seedOf(r))
		t.outcomes(r, "  ")
		for _, h := range r.Sometimes {
			if h.Wanted && h.Count == 0 && !h.Unseen {
				t.line("  %s  sometimes %s: never", t.verdict(false), clean(h.Name))
			}
		}
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}

// phasesOf returns the phases that some report has, in the order of time.
func phasesOf(all []*Report) (phases []Phase) {
	for _, name := range []string{"before", "during", "after"} {
		for _, r := range all {
			if p := r.phase(name); p != nil {
				phases = append(phases, *p)
				break
			}
		}
	}
	return phases
}

// phase returns the phase of that name, or nil.
func (r *Report) phase(name string) *Phase {
	for i := range r.Phases {
		if r.Phases[i].Name == name {
			return &r.Phases[i]
		}
	}
	return nil
}

func seedOf(r *Report) string {
	return fmt.Sprintf("engine %s, seed %d, unseed %s", clean(r.Engine), r.Seed, clean(r.Unseed))
}

// outcomes writes the expectations and their results, a line each.
func (t *text) outcomes(r *Report, indent string) {
	tab := tabwriter.NewWriter(&t.b, 0, 0, 2, ' ', 0)
	for _, o := range r.Expectations {
		metric, _, _ := strings.Cut(o.Text, " ")
		fmt.Fprintf(tab, "%s%s\t%s\t%s\n", indent, t.outcome(o.Passed, o.Unseen), clean(o.Text),
			outcomeText(&o, scenario.UnitOf(metric)))
	}
	_ = tab.Flush()
}

// Text writes a sweep for a terminal: a line per cell with the values of the axes, the most telling metrics of the
// run, and whether it passed.
func (s *Sweep) Text(w io.Writer, o TextOptions) error {
	t := &text{o: o}
	name := ""
	if s.Scenario != nil {
		name = s.Scenario.Name
	}
	t.line("%s", clean(cmp.Or(name, "no name")))
	t.line("engine %s, seed %d, %d runs\n", clean(s.Engine), s.Seed, len(s.Cells))
	tab := t.table()
	var head []string
	for _, a := range s.Axes {
		head = append(head, clean(a.Path))
	}
	fmt.Fprintln(tab, strings.Join(append(append(head, compared...), "", ""), "\t"))
	passed := 0
	for i := range s.Cells {
		c := &s.Cells[i]
		var row []string
		for _, a := range s.Axes {
			row = append(row, clean(c.Values[a.Path]))
		}
		for _, name := range compared {
			row = append(row, Figure(c.Metrics.Value(name), scenario.UnitOf(name)))
		}
		if c.Passed {
			passed++
		}
		fmt.Fprintln(tab, strings.Join(append(row, t.cell(c), ""), "\t"))
	}
	_ = tab.Flush()
	t.line("\n%s  %d of %d kept all expectations: %s", t.verdict(s.Passed()), passed, len(s.Cells), s.judged())
	_, err := io.WriteString(w, t.b.String())
	return err
}

// Passed reports whether the scenario as it is kept its expectations. The other cells are for comparison: settings that
// break an expectation are what a sweep is to find.
func (s *Sweep) Passed() bool {
	return !slices.ContainsFunc(s.Cells, func(c Cell) bool { return c.AsIs && !c.Passed })
}

// judged says what Passed is about.
func (s *Sweep) judged() string {
	if slices.ContainsFunc(s.Cells, func(c Cell) bool { return c.AsIs }) {
		return "the scenario as it is must, the others are for comparison"
	}
	return "none is the scenario as it is, so all are for comparison"
}

// cell is what came of a cell's expectations: PASS or FAIL if it must keep them.
func (t *text) cell(c *Cell) string {
	switch {
	case c.AsIs:
		return t.verdict(c.Passed)
	case c.Passed:
		return "kept"
	}
	return "not kept"
}
