package picture

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// judged are the metrics that a sweep is drawn by. Of each less is better.
var drawnMetrics = []struct{ metric, name, what string }{
	{"over_admission", "Over-admission", "tokens beyond burst + rate × time, in the worst interval"},
	{"shortfall", "Shortfall", "of what one ideal limiter admits"},
	{"redis_calls", "Redis calls", "of the script per second, all processes"},
}

const (
	heatSteps  = 6
	maxPanels  = 12
	maxChoices = 24 // rows of the table of choices
)

// sweepPage is the page of a sweep.
type sweepPage struct {
	frame
	Cells, Kept string
	Good        bool
	Advice      string
	Heats       []heat
	Scatters    []scatter
	Choices     []choice
	Expected    []expectation
	Axes        []string
	Left        int // choices that are not listed
}

// expectation is a formula beside what was measured.
type expectation struct{ Name, What, Value, Measured string }

const maxExpected = 20

// heat is a metric over all cells: a panel for each combination of the axes from the third on, rows are the first
// axis and columns the second.
type heat struct {
	ID, Title, Unit, Say string
	Panels               []panel
	Left                 int
}

type panel struct {
	Title         string
	RowAxis, Axis string
	Columns       []string
	Rows          []panelRow
}

type panelRow struct {
	Name  string
	Cells []heatCell
}

type heatCell struct {
	Text, Class, Tip string
	Broken, Advised  bool
}

// choice is a cell that no other beats in both metrics of a plot, or that is advised.
type choice struct {
	Number                  int
	Values                  []string
	Calls, Over, Short, P99 string
	Passed, Advised         bool
	cell                    int
}

// SweepHTML writes the page of a sweep: a heat map per metric, and what must be paid in Redis calls for less of
// another. A sweep without cells or axes, with more than 400 cells, or with a cell that lacks an axis' value, is an
// error, and nothing is written.
func SweepHTML(w io.Writer, s *measure.Sweep) error {
	if err := checkSweep(s); err != nil {
		return err
	}
	p := sweepPage{frame: newFrame(s.Scenario, "sweep"), Advice: clip(s.Advice, 4*maxText)}
	if s.Policy != nil {
		p.Replay.Kind = "search"
		l := &s.Policy.Limit
		p.Title = "A policy for " + clip(l.Name, 64)
		p.Learn = clip(fmt.Sprintf("%d tokens per %v, burst %d: each choice with the worst that came of it in all faults", l.Tokens, l.Per, l.Burst), 2*maxText)
	}
	p.Replay.Engine, p.Replay.Seed, p.Replay.Version = clip(s.Engine, 40), s.Seed, clip(s.Version, maxText)
	kept := 0
	for i := range s.Cells {
		if s.Cells[i].Passed {
			kept++
		}
	}
	p.Good = s.Passed()
	p.Kept = fmt.Sprintf("%s: %d kept all expectations", plural(len(s.Cells), "combination", "combinations"), kept)
	p.Facts = facts(nil, nil, s.Engine)
	for _, a := range s.Axes {
		p.Axes = append(p.Axes, clip(a.Path, 40))
		p.Facts = append(p.Facts, clip(a.Path, 40)+": "+plural(len(a.Values), "value", "values"))
	}
	p.Facts = append(p.Facts, fmt.Sprintf("seed %d", s.Seed))

	d := sweepDrawing{Sweep: s, advised: slices.IndexFunc(s.Cells,
		func(c measure.Cell) bool { return len(s.Advised) > 0 && maps.Equal(c.Values, s.Advised) })}
	sparse := 2*len(s.Cells) < d.places()
	d.choose(sparse)
	for _, pair := range [][2]string{{"redis_calls", "over_admission"}, {"redis_calls", "shortfall"}} {
		if sc, ok := d.scatter(pair[0], pair[1]); ok {
			p.Scatters = append(p.Scatters, sc)
		}
	}
	for _, j := range drawnMetrics {
		if sparse {
			break // there would be more holes than figures: the table has them all
		}
		p.Heats = append(p.Heats, d.heat(j.metric, j.name, j.what))
	}
	for i, c := range d.choices {
		if i >= maxChoices && !c.Advised {
			p.Left++
			continue
		}
		p.Choices = append(p.Choices, c)
	}
	for _, e := range s.Expected[:min(len(s.Expected), maxExpected)] {
		about := "about "
		if e.AtMost {
			about = "at most "
		}
		p.Expected = append(p.Expected, expectation{
			clip(e.Name, 40), clip(e.What, 2*maxText),
			about + clip(e.Text, 40), clip(e.MeasuredText, 40),
		})
	}
	return write(w, "sweep", p)
}

// checkSweep says what is wrong with a sweep.
func checkSweep(s *measure.Sweep) error {
	switch {
	case s == nil:
		return errors.New("picture: the sweep is nil: there must be one")
	case len(s.Axes) == 0:
		return errors.New("picture: axes has no entry: a sweep has at least one")
	case len(s.Cells) == 0:
		return errors.New("picture: cells has no entry: a sweep has at least one")
	case len(s.Cells) > maxCells:
		return fmt.Errorf("picture: cells has %d entries: there must be at most %d", len(s.Cells), maxCells)
	}
	for i, a := range s.Axes {
		if slices.ContainsFunc(s.Axes[:i], func(b scenario.Axis) bool { return a.Path == b.Path }) {
			return fmt.Errorf("picture: axes[%d].path is %q: an axis is there once", i, clip(a.Path, 40))
		}
		if len(a.Values) == 0 || len(a.Values) > maxCells {
			return fmt.Errorf("picture: axes[%d].values has %d entries: there must be 1 to %d", i, len(a.Values),
				maxCells)
		}
	}
	for i, c := range s.Cells {
		for _, a := range s.Axes {
			if v, ok := c.Values[a.Path]; !ok || !slices.Contains(a.Values, v) {
				return fmt.Errorf("picture: cells[%d].values[%q] is %q: it must be one of the axis", i,
					clip(a.Path, 40), clip(v, 40))
			}
		}
	}
	return nil
}

// sweepDrawing is a sweep that is being drawn.
type sweepDrawing struct {
	*measure.Sweep
	advised int // cell, or −1
	choices []choice
}

// values of a metric, by cell.
func (d *sweepDrawing) values(metric string) []float64 {
	list := make([]float64, len(d.Cells))
	for i := range d.Cells {
		list[i] = d.Cells[i].Metrics.Value(metric)
		if scenario.UnitOf(metric) == scenario.Tokens {
			list[i] = tenths(list[i])
		}
	}
	return list
}

// paretoFront returns the cells that no other beats: at most as much of x and less of y, or the other way round; by x.
// Of cells that are equal in both it has the first. Those that broke an expectation do not compete, unless all did.
func (d *sweepDrawing) paretoFront(x, y []float64) (cells []int) {
	kept := slices.ContainsFunc(d.Cells, func(c measure.Cell) bool { return c.Passed })
	for i := range x {
		if known(x[i]) && known(y[i]) && d.Cells[i].Passed == kept {
			cells = append(cells, i)
		}
	}
	slices.SortStableFunc(cells, func(a, b int) int { return cmp.Or(cmp.Compare(x[a], x[b]), cmp.Compare(y[a], y[b])) })
	least := math.Inf(1)
	return slices.DeleteFunc(cells, func(i int) bool {
		beaten := y[i] >= least
		least = min(least, y[i])
		return beaten
	})
}

// places returns how many combinations there could be.
func (d *sweepDrawing) places() int {
	n := 1
	for _, a := range d.Axes {
		n *= len(a.Values)
	}
	return n
}

// choose numbers the cells of both fronts and the advised one, or all, by Redis calls.
func (d *sweepDrawing) choose(all bool) {
	calls := d.values("redis_calls")
	cells := slices.Concat(d.paretoFront(calls, d.values("over_admission")),
		d.paretoFront(calls, d.values("shortfall")))
	if d.advised >= 0 {
		cells = append(cells, d.advised)
	}
	for i := range d.Cells {
		if all {
			cells = append(cells, i)
		}
	}
	slices.SortStableFunc(cells, func(a, b int) int {
		return cmp.Or(cmp.Compare(calls[a], calls[b]),
			cmp.Compare(a, b))
	})
	for _, i := range slices.Compact(cells) {
		m := &d.Cells[i].Metrics
		c := choice{
			Number: len(d.choices) + 1, cell: i, Passed: d.Cells[i].Passed, Advised: i == d.advised,
			Calls: written("redis_calls", m.RedisCalls), Over: written("over_admission", m.OverAdmission),
			Short: written("shortfall", m.Shortfall), P99: written("decide_p99", m.Value("decide_p99")),
		}
		for _, a := range d.Axes {
			c.Values = append(c.Values, clip(d.Cells[i].Values[a.Path], 24))
		}
		d.choices = append(d.choices, c)
	}
}

// number of a cell among the choices, or 0.
func (d *sweepDrawing) number(cell int) int {
	i := slices.IndexFunc(d.choices, func(c choice) bool { return c.cell == cell })
	return i + 1
}

// tip describes a cell in a line. It is empty if there are many cells.
func (d *sweepDrawing) tip(i int) string {
	if len(d.Cells) > maxTips {
		return "" // there would be no room for so many
	}
	c := &d.Cells[i]
	var b strings.Builder
	for _, a := range d.Axes {
		b.WriteString(clip(a.Path, 24) + " " + clip(c.Values[a.Path], 16) + " · ")
	}
	b.WriteString(written("over_admission", c.Metrics.OverAdmission) + " over · " +
		written("shortfall", c.Metrics.Shortfall) + " short · " +
		written("redis_calls", c.Metrics.RedisCalls))
	if !c.Passed {
		b.WriteString(" · expectations broken")
	}
	return b.String()
}

// heat draws a metric of all cells.
func (d *sweepDrawing) heat(metric, name, what string) heat {
	values := d.values(metric)
	h := heat{ID: "heat-" + metric, Title: name, Unit: what}
	s := scale{from: 0, to: max(top(values), 0)}
	if wide(values) {
		s = scaleOf(true, values)
	}
	least := bottom(values)
	switch {
	case !known(least):
		h.Say = "No combination tells."
	case least == top(values):
		h.Say = "Every combination has " + written(metric, least) + "."
	default:
		h.Say = "From " + written(metric, least) + " to " + written(metric, top(values)) +
			"; the darker or stronger, the more, and less is better."
	}
	axes := d.Axes
	if len(axes) == 1 {
		axes = append(slices.Clip(axes), scenario.Axis{Values: []string{""}}) // one column without a name
	}
	cellAt := map[string]int{}
	for i := range d.Cells {
		var at []string
		for _, a := range axes {
			at = append(at, d.Cells[i].Values[a.Path])
		}
		cellAt[strings.Join(at, "\x00")] = i
	}
	rows, columns, more := axes[0], axes[1], axes[2:]
	panels := combinations(more)
	h.Left = max(len(panels)-maxPanels, 0)
	for _, fixed := range panels[:min(len(panels), maxPanels)] {
		p := panel{RowAxis: clip(rows.Path, 32), Axis: clip(columns.Path, 32)}
		var title []string
		for i, a := range more {
			title = append(title, clip(a.Path, 32)+" "+clip(fixed[i], 24))
		}
		p.Title = strings.Join(title, ", ")
		for _, v := range columns.Values {
			p.Columns = append(p.Columns, clip(v, 16))
		}
		for _, r := range rows.Values {
			row := panelRow{Name: clip(r, 16)}
			for _, c := range columns.Values {
				cell := heatCell{Text: unknown, Class: "none"}
				if i, ok := cellAt[strings.Join(append([]string{r, c}, fixed...), "\x00")]; ok {
					cell = d.heatCell(i, metric, values[i], s)
				}
				row.Cells = append(row.Cells, cell)
			}
			p.Rows = append(p.Rows, row)
		}
		h.Panels = append(h.Panels, p)
	}
	return h
}

// heatCell draws a value of a cell.
func (d *sweepDrawing) heatCell(i int, metric string, v float64, s scale) heatCell {
	cell := heatCell{
		Text: written(metric, v), Class: "none", Tip: d.tip(i), Broken: !d.Cells[i].Passed, Advised: i == d.advised,
	}
	if known(v) {
		step := 0
		if s.to > s.from {
			step = min(int(s.at(v)*heatSteps), heatSteps-1)
		}
		cell.Class = fmt.Sprintf("h%d", step)
	}
	return cell
}

// combinations are all combinations of the axes' values, the first 120; of no axes it is the empty one.
func combinations(axes []scenario.Axis) [][]string {
	list := [][]string{nil}
	for _, a := range axes {
		var next [][]string
		for _, before := range list {
			for _, v := range a.Values {
				next = append(next, append(slices.Clip(before), v))
			}
		}
		list = next[:min(len(next), 10*maxPanels)]
	}
	return list
}
