package picture

import (
	"math"
	"strconv"
)

// scatterHeight is the height of the plot in pixels, as the template has it.
const scatterHeight = 300.0

// scatter is a plot of two metrics, a point per cell of a sweep. Across, everything is a percentage; down, pixels.
type scatter struct {
	ID, Title, Unit, Say string
	Rows, XTicks         []mark
	XName                string
	Steps                []segment // of the front, from cell to cell
	Spots                []spot
}

type segment struct{ X1, Y1, X2, Y2 float64 }

// spot is a cell in a scatter.
type spot struct {
	X, Y    float64
	Class   string // front, beaten
	Broken  bool   // drawn as a cross
	Advised bool   // drawn with a ring
	Number  int    // in the table of choices, or 0
	Tip     string
}

// Left reports whether the name of the spot is to its left: on its right there is no room on a phone.
func (p spot) Left() bool { return p.X > 70 }

// scatter draws all cells by two metrics, of which less is better. It is empty when no cell knows both.
func (d *sweepDrawing) scatter(across, up string) (s scatter, ok bool) {
	x, y := d.values(across), d.values(up)
	for i := range x {
		if !known(x[i]) || !known(y[i]) {
			x[i], y[i] = math.NaN(), math.NaN()
		}
	}
	best := d.paretoFront(x, y)
	if len(best) == 0 {
		return s, false
	}
	s = scatter{ID: "pareto-" + up}
	for _, j := range drawnMetrics {
		if j.metric == up {
			s.Title, s.Unit = j.name+" against Redis calls", j.what
		}
	}
	xs, ys := scaleOf(wide(x), x), scaleOf(wide(y), y)
	s.XName = "Redis calls per second"
	if xs.log {
		s.XName += ", logarithmic"
	}
	if ys.log {
		s.Unit += ", logarithmic"
	}
	text := short
	if up == "shortfall" {
		text = percent
	}
	for _, v := range ys.ticks() {
		s.Rows = append(s.Rows, mark{Y: (1 - ys.at(v)) * scatterHeight, Text: text(v)})
	}
	for _, v := range xs.ticks() {
		m := mark{X: xs.at(v) * 100, Text: short(v), Anchor: "middle"}
		switch {
		case m.X < 2:
			m.Anchor = "start"
		case m.X > 98:
			m.Anchor = "end"
		}
		s.XTicks = append(s.XTicks, m)
	}
	place := func(i int) (float64, float64) {
		return math.Round(xs.at(x[i])*1e4) / 100, math.Round((1-ys.at(y[i]))*scatterHeight*10) / 10
	}
	for n, i := range best[:len(best)-1] {
		// Level to the next, then down to it: no combination is known in between.
		x1, y1 := place(i)
		x2, y2 := place(best[n+1])
		s.Steps = append(s.Steps, segment{x1, y1, x2, y1}, segment{x2, y1, x2, y2})
	}
	onFront := map[int]bool{}
	for _, i := range best {
		onFront[i] = true
	}
	// Those on the front come last: what comes last lies on top.
	for _, wanted := range []bool{false, true} {
		for i := range x {
			if onFront[i] != wanted || !known(x[i]) {
				continue
			}
			p := spot{Class: "beaten", Broken: !d.Cells[i].Passed, Advised: i == d.advised, Tip: d.tip(i)}
			p.X, p.Y = place(i)
			if wanted {
				p.Class = "front"
			}
			if wanted || p.Advised {
				p.Number = d.number(i)
			}
			s.Spots = append(s.Spots, p)
		}
	}
	s.Say = "Of those that kept all expectations, "
	if !d.Cells[best[0]].Passed {
		s.Say = "None kept all expectations. Of all, "
	}
	if len(best) == 1 {
		s.Say += "one is best in both."
	} else {
		s.Say += strconv.Itoa(len(best)) + " are on the front: who wants less of one takes more of the other."
	}
	if d.advised >= 0 && known(x[d.advised]) {
		s.Say += " The advice is number " + strconv.Itoa(d.number(d.advised)) + "."
	}
	return s, true
}
