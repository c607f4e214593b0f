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

// Sweep is what came of one scenario run with each combination of its axes' values.
type Sweep struct {
	Schema   int                `json:"schema"`
	Scenario *scenario.Scenario `json:"scenario"` // as it was before an axis changed it
	Seed     uint64             `json:"seed"`     // of every cell
	Version  string             `json:"version"`

	Axes  []scenario.Axis `json:"axes"`
	Cells []Cell          `json:"cells"`
}

// Cell is one run of a sweep.
type Cell struct {
	Values  map[string]string `json:"values"` // by Axis.Path, one of its Values each
	Passed  bool              `json:"passed"`
	AsIs    bool              `json:"as_is,omitempty"` // the values are those of the scenario itself
	Unseed  string            `json:"unseed"`
	Metrics Metrics           `json:"metrics"`
}

// Passed reports whether the scenario as it is kept its expectations. The other cells are for comparison: settings that
// break an expectation are what a sweep is to find.
func (s *Sweep) Passed() bool {
	return !slices.ContainsFunc(s.Cells, func(c Cell) bool { return c.AsIs && !c.Passed })
}

// Text writes a sweep for a terminal: a line per cell with the values of the axes, the most telling metrics of the
// run, and whether it passed.
func (s *Sweep) Text(w io.Writer, o TextOptions) error {
	t := &text{o: o}
	name := "no name"
	if s.Scenario != nil {
		name = cmp.Or(s.Scenario.Name, name)
	}
	t.line("%s\nseed %d, %d runs\n", clean(name), s.Seed, len(s.Cells))
	tab := tabwriter.NewWriter(&t.b, 0, 0, 2, ' ', tabwriter.AlignRight)
	var head []string
	for _, a := range s.Axes {
		head = append(head, clean(a.Path))
	}
	fmt.Fprintln(tab, strings.Join(append(append(head, compared...), "", ""), "\t"))
	passed, judged := 0, "none is the scenario as it is, so all are for comparison"
	for i := range s.Cells {
		c := &s.Cells[i]
		var row []string
		for _, a := range s.Axes {
			row = append(row, clean(c.Values[a.Path]))
		}
		for _, name := range compared {
			row = append(row, c.Metrics.figure(name))
		}
		outcome := map[bool]string{true: "kept", false: "not kept"}[c.Passed]
		if c.AsIs {
			outcome, judged = t.verdict(c.Passed), "the scenario as it is must, the others are for comparison"
		}
		if c.Passed {
			passed++
		}
		fmt.Fprintln(tab, strings.Join(append(row, outcome, ""), "\t"))
	}
	_ = tab.Flush()
	t.line("\n%s  %d of %d kept all expectations: %s", t.verdict(s.Passed()), passed, len(s.Cells), judged)
	_, err := io.WriteString(w, t.b.String())
	return err
}
