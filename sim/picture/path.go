package picture

import (
	"math"
	"strconv"
)

// A plot's own units: two per step of the series across, so that the middle of a step is a whole number, and ten
// per pixel down. The browser stretches it to the width that there is, and keeps strokes as thin as they are.
const (
	acrossStep = 2
	perPixel   = 10
)

// pen writes the data of an SVG path with whole, relative numbers, which are the shortest.
type pen struct {
	d     []byte
	x, y  int
	start point // of the part that is being drawn
	last  byte
}

func (p *pen) line(x, y int) { p.to('l', x, y) }

func (p *pen) move(x, y int) {
	p.to('m', x, y)
	p.start = point{x, y}
}

// close goes back to where the part began.
func (p *pen) close() {
	p.d, p.last = append(p.d, 'z'), 'z'
	p.x, p.y = p.start.x, p.start.y
}

// across draws a line of a length to the right.
func (p *pen) across(length int) {
	p.d = strconv.AppendInt(append(p.d, 'h'), int64(length), 10)
	p.x, p.last = p.x+length, 'h'
}

func (p *pen) to(verb byte, x, y int) {
	switch {
	case len(p.d) == 0:
		p.d = append(p.d, 'M')
	case verb != p.last:
		p.d = append(p.d, verb)
	default:
		p.d = append(p.d, ' ')
	}
	p.d = strconv.AppendInt(p.d, int64(x-p.x), 10)
	if y >= p.y {
		p.d = append(p.d, ' ')
	}
	p.d = strconv.AppendInt(p.d, int64(y-p.y), 10)
	p.x, p.y, p.last = x, y, verb
}

// point is a corner of a line.
type point struct{ x, y int }

// runs returns a line through the middles of the steps for each run of known values, level to the edges of its
// first and last step. A step alone is a short level line.
func runs(values []float64, s scale, height int) (lines [][]point) {
	y := func(v float64) int { return int(math.Round((1 - s.at(v)) * float64(height*perPixel))) }
	for i := 0; i < len(values); i++ {
		if !known(values[i]) {
			continue
		}
		line := []point{{i * acrossStep, y(values[i])}}
		for ; i < len(values) && known(values[i]); i++ {
			line = append(line, point{i*acrossStep + 1, y(values[i])})
		}
		lines = append(lines, straight(append(line, point{i * acrossStep, y(values[i-1])})))
	}
	return lines
}

// straight leaves out the points in the middle of level parts.
func straight(line []point) []point {
	kept := line[:1]
	for i := 1; i < len(line); i++ {
		if i+1 < len(line) && line[i].y == kept[len(kept)-1].y && line[i].y == line[i+1].y {
			continue
		}
		kept = append(kept, line[i])
	}
	return kept
}

// linePath is values as a line.
func linePath(values []float64, s scale, height int) string {
	var p pen
	for _, line := range runs(values, s, height) {
		p.move(line[0].x, line[0].y)
		for _, c := range line[1:] {
			p.line(c.x, c.y)
		}
	}
	return string(p.d)
}

// areaPath is what lies between two series of values. A base that is nil, or not known, is 0.
func areaPath(values, base []float64, s scale, height int) string {
	floor := make([]float64, len(values))
	for i := range floor {
		switch {
		case !known(values[i]):
			floor[i] = math.NaN()
		case base != nil && known(base[i]):
			floor[i] = base[i]
		}
	}
	var p pen
	below := runs(floor, s, height)
	for i, line := range runs(values, s, height) {
		p.move(line[0].x, line[0].y)
		for _, c := range line[1:] {
			p.line(c.x, c.y)
		}
		for j := len(below[i]) - 1; j >= 0; j-- {
			p.line(below[i][j].x, below[i][j].y)
		}
		p.close()
	}
	return string(p.d)
}
