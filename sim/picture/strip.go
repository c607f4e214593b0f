package picture

import (
	"slices"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
)

// States of a breaker, the more remarkable the higher. A step of the strip shows the most remarkable of its time.
const (
	gone = iota // the process was not there
	closed
	probing
	open
	states
)

// stateNames are as a report has them.
var stateNames = [states]string{"gone", "closed", "probing", "open"}

const (
	maxStrips = 100       // processes that are drawn
	stripRoom = 72 * 1024 // bytes that the strips of all of them may take
)

// strip returns the breakers as rows over time: how thick a bar is says the state as its color does.
func (t *timeline) strip(strips []measure.BreakerStrip) (c chart, counts [states][]float64) {
	strips = strips[:min(len(strips), maxStrips)]
	row := 4
	for _, size := range []int{6, 8, 14, 20} /* even: the middle of a row is a whole number */ {
		if size*len(strips) <= 300 {
			row = size
		}
	}
	c = t.chart("breakers", "Breakers", "one row per process", row*len(strips))
	c.Pixels = true
	grid := make([][]uint8, len(strips))
	for i := range strips {
		grid[i] = t.worst(strips[i].Changes)
	}
	for s := range counts {
		counts[s] = make([]float64, t.steps)
		for i := range t.steps {
			for _, cells := range grid {
				if int(cells[i]) == s {
					counts[s][i]++
				}
			}
		}
	}
	// The names have a line of 16 pixels each, and are at most ten.
	for i := 0; i < len(strips); i += max((15+row)/row, (len(strips)+9)/10) {
		c.Rows = append(c.Rows, mark{Y: (float64(i) + .5) * float64(row), Text: clip(strips[i].Process, 6)})
	}
	for width := 1; ; width *= 2 {
		c.Shapes = c.Shapes[:0]
		size := 0
		for s := closed; s < states; s++ {
			d := bars(grid, uint8(s), width, row)
			size += len(d)
			if d != "" {
				c.Shapes = append(c.Shapes, shape{Class: "bar " + stateNames[s], D: d, Thick: thickness(s, row)})
			}
		}
		if size <= stripRoom || width >= t.steps {
			break
		}
	}
	c.Keys = []key{
		{Class: "closed", Kind: "bar", Text: "closed", Thick: thickness(closed, swatch)},
		{Class: "probing", Kind: "bar", Text: "probing", Thick: thickness(probing, swatch)},
		{Class: "open", Kind: "bar", Text: "open", Thick: thickness(open, swatch)},
		{Class: "gone", Kind: "bar", Text: "no process", Thick: thickness(open, swatch)},
	}
	return c, counts
}

// thickness of the bar of a state in a row of so many pixels.
func thickness(state, row int) float64 {
	switch state {
	case open:
		return float64(row) - min(1, float64(row)/6)
	case probing:
		return float64(row) / 2
	}
	return max(1, float64(row)/6)
}

// worst returns the most remarkable state within each step. Before its first change a process was not there; a
// state that is none of ours changes nothing.
func (t *timeline) worst(changes []measure.BreakerChange) []uint8 {
	cells := make([]uint8, t.steps)
	state, next := uint8(gone), 0
	for i := range cells {
		begin, end := float64(i)*t.step, float64(i+1)*t.step
		// What ends as the step begins is not in it.
		for ; next < len(changes) && changes[next].AtS <= begin; next++ {
			state = stateOf(changes[next].State, state)
		}
		cells[i] = state
		for ; next < len(changes) && !(changes[next].AtS >= end); next++ {
			state = stateOf(changes[next].State, state)
			cells[i] = max(cells[i], state)
		}
	}
	return cells
}

// stateOf is the state of a name, or the one before when there is no such name.
func stateOf(name string, before uint8) uint8 {
	if s := slices.Index(stateNames[:], name); s >= 0 {
		return uint8(s)
	}
	return before
}

// bars is one line per run of a state in each row, looking at so many steps at a time.
func bars(grid [][]uint8, state uint8, width, row int) string {
	var p pen
	for i, cells := range grid {
		y := (2*i + 1) * row / 2
		merged := make([]uint8, 0, len(cells)/width+1)
		for from := 0; from < len(cells); from += width {
			merged = append(merged, slices.Max(cells[from:min(from+width, len(cells))]))
		}
		for from := 0; from < len(merged); from++ {
			if merged[from] != state {
				continue
			}
			to := from
			for to < len(merged) && merged[to] == state {
				to++
			}
			p.move(from*width*acrossStep, y)
			p.across((min(to*width, len(cells)) - from*width) * acrossStep)
			from = to
		}
	}
	return string(p.d)
}
