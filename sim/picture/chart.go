package picture

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

const (
	side       = 1000 // of the grid of a plot, which the browser stretches to the width that there is
	mostLevels = 120  // of a line: more are a thick band on a phone
	laneHeight = 15   // of the names of faults, in pixels
	laneWidth  = 36   // letters that are as wide as a plot on a narrow phone: there too no name lies on another
)

// chart is a plot over time. Lengths are in percent across, and in pixels down.
type chart struct {
	ID, Title, Unit, Say string
	Height, Margin       int // of the plot, and above it for the names of faults
	Faults               []fault
	Rows, Times          []mark
	Lines                []line
}

// mark is a text beside an axis.
type mark struct {
	At   float64
	Text string
}

// line is a line on the grid, or an area down to 0, and its name for the legend.
type line struct{ Shape, Class, Name, D string }

// timeline is what the charts of a run share.
type timeline struct {
	*measure.Series
	whole        part
	steps, per   int     // of the series, and how many of them have one level
	length, from float64 // seconds, and from which on figures count
	faults       []fault
	id           string  // what the names of its charts begin with
	top          float64 // what the scale of rates has at least
}

// charts returns the charts of a report. Without a series there are none.
func charts(r *measure.Report, s *scenario.Scenario) []chart {
	t := newTimeline(r, s)
	if t == nil {
		return nil
	}
	return t.charts(s)
}

// newTimeline returns nil if there is nothing to draw.
func newTimeline(r *measure.Report, s *scenario.Scenario) *timeline {
	t := &timeline{Series: &r.Series, whole: part{"", &r.Metrics}, from: float64(s.MeasuredFrom()) / 1e9}
	for _, values := range [][]float64{t.Offered, t.Admitted, t.Alone, t.Calls, t.MaxUs, t.Open, t.Running} {
		t.steps = max(t.steps, len(values))
	}
	t.length, t.per = float64(t.steps)*t.StepS, (t.steps+mostLevels-1)/mostLevels
	if !(t.length > 0 && t.length <= 1e9) {
		return nil
	}
	t.faults = faults(r.Faults, t.length)
	return t
}

// highestRate is the highest of what its chart of rates shows.
func (t *timeline) highestRate() float64 {
	return max(highest(t.level(t.Offered, mean)), highest(t.level(t.Admitted, mean)), highest(t.level(t.Alone, mean)))
}

func (t *timeline) charts(s *scenario.Scenario) []chart {
	all := []chart{t.rates(s), t.breakers(), t.calls(), t.decisions()}
	if s.AtOnce.Places > 0 {
		all = slices.Insert(all, 1, t.running(s))
	}
	return all
}

// level gives every few steps one value. It is −1 where no step is known.
func (t *timeline) level(values []float64, of func([]float64) float64) (all []float64) {
	for i := range t.steps {
		first := min(i-i%t.per, len(values))
		all = append(all, of(values[first:min(first+t.per, len(values))]))
	}
	return all
}

// mean and highest are those of what is known, and −1 of nothing.
func mean(values []float64) float64 {
	sum, n := 0.0, 0
	for _, v := range values {
		if known(v) {
			sum, n = sum+v, n+1
		}
	}
	if n == 0 {
		return -1
	}
	return sum / float64(n)
}

func highest(values []float64) float64 {
	most := -1.0
	for _, v := range values {
		if known(v) {
			most = max(most, v)
		}
	}
	return most
}

// measured is the values from the warm-up on.
func (t *timeline) measured(values []float64) []float64 {
	return values[min(int(math.Ceil(t.from/t.StepS-1e-9)), len(values)):]
}

func (t *timeline) chart(id, title, unit string, height int) chart {
	c := chart{ID: t.id + id, Title: title, Unit: unit, Height: height, Faults: t.faults}
	scale := 1.0 // second
	for _, longer := range []float64{60, 3600} {
		if t.length > 2*longer {
			scale = longer
		}
	}
	step := roundStep(t.length/scale/6) * scale
	for at := 0.0; at <= t.length; at += step {
		c.Times = append(c.Times, mark{math.Round(at/t.length*1000) / 10, clock(at)})
	}
	return c
}

// roundStep is the least of 1, 2, 5, 10, … and their parts by ten that is at least v.
func roundStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)+1e-9))
	for _, times := range []float64{1, 2, 5} {
		if v <= times*power*(1+1e-9) {
			return times * power
		}
	}
	return 10 * power
}

// scale puts round numbers beside the plot, from 0 up. It returns the highest: no value is above
// it.
func (c *chart) scale(values ...[]float64) (top float64) {
	most := highest(slices.Concat(values...))
	if most < 1e-6 {
		most = 1
	}
	step := roundStep(most / 5)
	top = step * math.Ceil(most/step-1e-9)
	for v := 0.0; v <= top+step/2; v += step {
		c.row(v/top, text(v, scenario.Count))
	}
	return top
}

// row adds a line across the plot, at a part of its height.
func (c *chart) row(part float64, text string) {
	c.Rows = append(c.Rows, mark{math.Round(float64(c.Height)*(1-part)*10) / 10, text})
}

// draw adds a line, or an area, up to top. There is a gap where a value is not known.
func (c *chart) draw(shape, class, name string, values []float64, top float64) {
	var b strings.Builder
	before := -1.0
	for i, v := range append(slices.Clone(values), -1) {
		if v == before {
			continue
		}
		x, y := side*i/len(values), side-int(math.Round(side*min(v/top, 1)))
		if known(before) {
			fmt.Fprintf(&b, "H%d", x)
		}
		switch {
		case known(v) && known(before):
			fmt.Fprintf(&b, "V%d", y)
		case known(v) && shape == "area":
			fmt.Fprintf(&b, "M%d %dV%d", x, side, y)
		case known(v):
			fmt.Fprintf(&b, "M%d %d", x, y)
		case shape == "area":
			fmt.Fprintf(&b, "V%d", side)
		}
		before = v
	}
	c.Lines = append(c.Lines, line{shape, class, name, b.String()})
}

// rates is what was asked for and what was admitted. The limit is drawn where all requests are for
// one key: the sum of the limits of many keys bounds nobody, because most of them ask for less. What
// a window has left may be more than the plot shows: then its line is the upper edge.
func (t *timeline) rates(s *scenario.Scenario) chart {
	c := t.chart("rates", "Offered and admitted", "tokens per second", 220)
	for _, f := range t.faults {
		c.Margin = max(c.Margin, laneHeight-f.Above)
	}
	offered, admitted := t.level(t.Offered, mean), t.level(t.Admitted, mean)
	alone, limit := t.level(t.Alone, mean), t.level(t.Limit, mean)
	name, shown := "limit, which a burst may exceed for a while", limit
	if len(s.Limits) > 0 && lua.Algorithm(s.Limits[0].Policy().Algorithm).Has(lua.Edges) {
		name, shown = "limit: what is left of the window", nil
	}
	top := c.scale(offered, admitted, alone, shown, []float64{t.top})
	most := highest(alone)
	if most > 0 {
		c.draw("area", "alone", "of it without Redis", alone, top)
	}
	c.draw("line", "offered", "offered", offered, top)
	c.draw("line", "admitted", "admitted", admitted, top)
	if highest(limit) >= 0 {
		for i, v := range limit {
			limit[i] = min(v, top)
		}
		c.draw("line", "limit", name, limit, top)
	}
	c.Say = fmt.Sprintf("From %s on %s were offered on average, and %s admitted.", clock(t.from),
		text(mean(t.measured(t.Offered)), scenario.PerSec), text(mean(t.measured(t.Admitted)), scenario.PerSec))
	if most > 0 {
		c.Say += " At most " + text(most, scenario.PerSec) + " were admitted without Redis."
	}
	return c
}

// running is how many requests of a key ran at the same time.
func (t *timeline) running(s *scenario.Scenario) chart {
	c := t.chart("running", "Running at the same time", "requests of one key, in all processes", 140)
	most, places := t.level(t.Running, highest), float64(s.AtOnce.Places)
	top := c.scale(most, []float64{places})
	c.draw("area", "running", "running", most, top)
	c.draw("line", "limit", "places", []float64{places}, top)
	c.Say = fmt.Sprintf("From %s on at most %s ran on %d places, and %s of the requests found none.", clock(t.from),
		t.whole.Value("at_once"), s.AtOnce.Places, t.whole.Value("full"))
	return c
}

func (t *timeline) breakers() chart {
	c := t.chart("breakers", "Open breakers", "part of the processes", 80)
	for _, part := range []float64{0, .5, 1} {
		c.row(part, text(part, scenario.Ratio))
	}
	open := t.level(t.Open, highest)
	c.draw("area", "open", "", open, 1)
	c.Say = "A process whose breaker is open does not ask Redis. At one time it is open in at most " +
		text(highest(open), scenario.Ratio) + " of the processes."
	return c
}

// calls is how busy Redis was. The average is that of the tile.
func (t *timeline) calls() chart {
	c := t.chart("calls", "Redis calls", "per second", 100)
	calls := t.level(t.Calls, mean)
	c.draw("area", "calls", "", calls, c.scale(calls))
	c.Say = fmt.Sprintf("From %s on %s on average, and at most %s.", clock(t.from), t.whole.Value("redis_calls"),
		text(highest(t.measured(calls)), scenario.PerSec))
	return c
}

// decisions is how long callers waited at most, on a logarithmic axis. Less than a microsecond,
// when nobody waited, is at its foot.
func (t *timeline) decisions() chart {
	c := t.chart("decisions", "Longest decision", "logarithmic", 100)
	took := t.level(t.MaxUs, highest)
	decades := max(1, math.Ceil(math.Log10(max(1, highest(took)))-1e-9))
	for d := 0.0; d <= decades; d++ {
		c.row(d/decades, text(math.Pow(10, d-6), scenario.Seconds))
	}
	for i, v := range took {
		if known(v) {
			took[i] = math.Log10(max(1, v))
		}
	}
	c.draw("area", "decisions", "", took, decades)
	c.Say = fmt.Sprintf("From %s on at most %s, and 99 of 100 at most %s.", clock(t.from),
		t.whole.Value("decide_max"), t.whole.Value("decide_p99"))
	return c
}

// clock is a time in seconds, as scenarios write it.
func clock(s float64) string {
	if !(s >= 0 && s <= 1e9) {
		return "unknown"
	}
	return scenario.Duration(math.Round(s*1e3) * 1e6).String()
}

// fault is a fault as the list has it, and a chart: from where to where, in percent, and where its
// name is.
type fault struct {
	Name, Text, When, Anchor string
	From, Width              float64
	Above                    int // the baseline of the name, in pixels from the plot: negative
}

// faults places the faults of a report on a time of so many seconds. It puts their names into lanes
// in which none lies on another. The text of a fault is "at 20s blackhole for=15s".
func faults(spans []measure.FaultSpan, length float64) (all []fault) {
	free := map[int]float64{} // by lane, from which letter on
	for _, s := range spans {
		f := fault{Text: s.Text, When: "at " + clock(s.FromS), Anchor: "start"}
		if s.ToS > s.FromS {
			f.When = clock(s.FromS) + " to " + clock(s.ToS)
		}
		if rest, ok := strings.CutPrefix(s.Text, "at "); ok {
			_, f.Text, _ = strings.Cut(rest, " ")
		}
		f.Name, _, _ = strings.Cut(fmt.Sprintf("%.16s ", f.Text), " ")
		percent := func(at float64) float64 { return math.Round(min(max(at/length, 0), 1)*1e4) / 100 }
		f.From, f.Width = percent(s.FromS), percent(s.ToS-s.FromS)
		left, width := f.From/100*laneWidth, float64(len(f.Name)+1)
		if left+width > laneWidth {
			f.Anchor, left = "end", max(left-width, 0)
		}
		lane := 0
		for free[lane] > left {
			lane++
		}
		free[lane] = left + width
		f.Above = -laneHeight*lane - 5
		all = append(all, f)
	}
	return all
}
