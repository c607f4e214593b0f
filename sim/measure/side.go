package measure

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// compared are the metrics of tables that have little room.
var compared = []string{
	"utilisation", "over_admission", "shortfall", "alone", "denied_within", "decide_p99", "decide_max", "redis_calls", "detect", "heal",
}

// SideBySide writes reports for a terminal, a column each under its name: the most telling metrics of each phase, and then
// the expectations of each. There must be as many names as reports.
func SideBySide(w io.Writer, names []string, all []*Report, o TextOptions) error {
	t := &text{o: o}
	head := []string{""}
	for i := range all {
		head = append(head, clean(names[i]))
	}
	for _, phase := range phasesOf(all) {
		t.line("%s", clean(phase.Name)+fmt.Sprintf(" (%s-%s)", lasting(phase.FromS), lasting(phase.ToS)))
		tab := tabwriter.NewWriter(&t.b, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(tab, strings.Join(head, "\t")+"\t")
		for _, name := range compared {
			row, known := []string{name}, false
			for _, r := range all {
				v := -1.0
				if i := slices.IndexFunc(r.Phases, func(p Phase) bool { return p.Name == phase.Name }); i >= 0 {
					v = r.Phases[i].Metrics.Value(name)
				}
				known = known || v >= 0
				row = append(row, figure(v, unitOf(name)))
			}
			if known {
				fmt.Fprintln(tab, strings.Join(row, "\t")+"\t")
			}
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

// phasesOf are the phases that some report has, in the order of time.
func phasesOf(all []*Report) (phases []Phase) {
	for _, name := range []string{"before", "during", "after"} {
		for _, r := range all {
			if i := slices.IndexFunc(r.Phases, func(p Phase) bool { return p.Name == name }); i >= 0 {
				phases = append(phases, r.Phases[i])
				break
			}
		}
	}
	return phases
}

func seedOf(r *Report) string {
	return fmt.Sprintf("engine %s, seed %d, unseed %s", clean(r.Engine), r.Seed, clean(r.Unseed))
}

// outcomes are the expectations and what came of them, a line each.
func (t *text) outcomes(r *Report, indent string) {
	tab := tabwriter.NewWriter(&t.b, 0, 0, 2, ' ', 0)
	for _, o := range r.Expectations {
		metric, _, _ := strings.Cut(o.Text, " ")
		fmt.Fprintf(tab, "%s%s\t%s\t%s\n", indent, t.outcome(o.Passed, o.Unseen), clean(o.Text), is(&o, unitOf(metric)))
	}
	_ = tab.Flush()
}

// Text writes a sweep for a terminal: a line per cell with the values of the axes, the most telling metrics of the run, and
// whether it passed.
func (s *Sweep) Text(w io.Writer, o TextOptions) error {
	t := &text{o: o}
	name := "no name"
	if s.Scenario != nil && s.Scenario.Name != "" {
		name = s.Scenario.Name
	}
	t.line("%s", clean(name))
	t.line("engine %s, seed %d, %d runs\n", clean(s.Engine), s.Seed, len(s.Cells))
	tab := tabwriter.NewWriter(&t.b, 0, 0, 2, ' ', tabwriter.AlignRight)
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
			row = append(row, figure(c.Metrics.Value(name), unitOf(name)))
		}
		if c.Passed {
			passed++
		}
		fmt.Fprintln(tab, strings.Join(append(row, t.verdict(c.Passed), ""), "\t"))
	}
	_ = tab.Flush()
	t.line("\n%s  %d of %d kept all expectations", t.verdict(passed == len(s.Cells)), passed, len(s.Cells))
	_, err := io.WriteString(w, t.b.String())
	return err
}

// Passed reports whether every cell has.
func (s *Sweep) Passed() bool {
	return !slices.ContainsFunc(s.Cells, func(c Cell) bool { return !c.Passed })
}

// Figure is a value of a metric as texts have it: 1000, 5%, 1.5ms, 261/s, and - for what cannot be told.
func Figure(v float64, u scenario.Unit) string { return figure(v, u) }
