package measure

import (
	"cmp"
	"io"
	"slices"
	"strings"

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

	Reports []*Report `json:"-"` // of the cells, with expectations if the cell is the scenario as it is
}

// Names are the values of each cell, as in "fleet.mode=open, fleet.n=20", for a page with all of
// them.
func (s *Sweep) Names() (names []string) {
	for _, c := range s.Cells {
		var values []string
		for _, a := range s.Axes {
			values = append(values, a.Path+"="+c.Values[a.Path])
		}
		names = append(names, strings.Join(values, ", "))
	}
	return names
}

// Cell is one run of a sweep.
type Cell struct {
	Values  map[string]string `json:"values"` // by Axis.Path, one of its Values each
	Passed  bool              `json:"passed"`
	AsIs    bool              `json:"as_is,omitempty"` // the values are those of the scenario itself
	Unseed  string            `json:"unseed"`
	Metrics Metrics           `json:"metrics"`
}

// Passed reports whether the scenario as it is kept its expectations. The other cells are for
// comparison: settings that break an expectation are what a sweep is to find.
func (s *Sweep) Passed() bool {
	return !slices.ContainsFunc(s.Cells, func(c Cell) bool { return c.AsIs && !c.Passed })
}

// Text writes a sweep for a terminal: a line per cell with the values of the axes, the most telling
// metrics of the run, and whether it kept the expectations. Color adds ANSI escapes.
func (s *Sweep) Text(w io.Writer, color bool) error {
	t := &text{color: color}
	name := "no name"
	if s.Scenario != nil {
		name = cmp.Or(s.Scenario.Name, name)
	}
	t.line("%s\nseed %d, %d runs\n", clean(name), s.Seed, len(s.Cells))
	var head []string
	for _, a := range s.Axes {
		head = append(head, clean(a.Path))
	}
	names := compared
	if s.Scenario != nil && s.Scenario.AtOnce.Places > 0 {
		names = slices.Concat(compared, comparedAtOnce)
	}
	rows, kept := [][]string{append(append(head, names...), "")}, 0
	for i := range s.Cells {
		c := &s.Cells[i]
		var row []string
		for _, a := range s.Axes {
			row = append(row, clean(c.Values[a.Path]))
		}
		for _, name := range names {
			row = append(row, c.Metrics.figure(name))
		}
		outcome := "not kept"
		if c.Passed {
			outcome = "kept"
			kept++
		}
		if c.AsIs {
			outcome = t.verdict(c.Passed)
		}
		rows = append(rows, append(row, outcome))
	}
	t.grid(rows)
	t.line("\n%s  %d of %d kept all expectations: the scenario as it is must, if it is among them",
		t.verdict(s.Passed()), kept, len(s.Cells))
	_, err := io.WriteString(w, t.String())
	return err
}
