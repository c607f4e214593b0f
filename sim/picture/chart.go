package picture

import (
	"cmp"
	"math"
	"slices"
	"unicode/utf8"
)

// chart is one plot over time, as the template draws it. Across, everything is a percentage or in units that stretch;
// down, everything is in pixels.
type chart struct {
	ID, Title, Unit string
	Say             string // what it shows, in a sentence
	Height          int
	Width           int // in units of a path: two per step
	Rows            []mark
	XTicks          []mark
	Bands           []band
	Lanes           int // of names of faults, above the plot
	Shapes          []shape
	Ends            []mark // names beside the ends of the lines
	Keys            []key  // the same names where there is no room beside
	Pixels          bool   // Shapes are in pixels down, their strokes as thick as they say
}

// mark is a text at a place.
type mark struct {
	X      float64 // percent
	Y      float64 // pixels
	Text   string
	Class  string
	Anchor string // start, middle, end
}

// shape is a path.
type shape struct {
	Class, D string
	Thick    float64 // of the stroke, in pixels; 0 is as the style says
}

// key explains a line, an area or a bar.
type key struct {
	Class, Kind, Text string
	Beside            bool    // a name beside the plot says the same, where there is room
	Thick             float64 // of a bar, in a swatch of so many pixels
}

const swatch = 12

// Y is where a bar begins, to stand in the middle of its swatch.
func (k key) Y() float64 { return (swatch - k.Thick) / 2 }

// Top is where the plot begins, in pixels from the top of the drawing.
func (c *chart) Top() int {
	if c.Lanes == 0 {
		return 8
	}
	return 10 + laneHeight*c.Lanes
}

// Full is the height of the drawing with its names and times.
func (c *chart) Full() int { return c.Top() + c.Height + 24 }

// Bottom is the base line of the times.
func (c *chart) Bottom() int { return c.Height + 17 }

// Stub is where the small line below a time ends.
func (c *chart) Stub() int { return c.Height + 4 }

// PathHeight is the height of the plot in units of a path.
func (c *chart) PathHeight() int {
	if c.Pixels {
		return c.Height
	}
	return c.Height * perPixel
}

// timeline is what all charts of a run share: its steps, and the faults.
type timeline struct {
	steps int
	step  float64 // seconds
	bands []band
	lanes int
}

func (t *timeline) total() float64 { return float64(t.steps) * t.step }

// chart returns an empty chart over the time.
func (t *timeline) chart(id, title, unit string, height int) chart {
	c := chart{ID: id, Title: title, Unit: unit, Height: height, Width: t.steps * acrossStep, Bands: t.bands}
	for _, at := range timeTicks(t.total()) {
		m := mark{X: at / t.total() * 100, Text: length(at), Anchor: "middle"}
		switch {
		case m.X < 2:
			m.Anchor, m.Text = "start", "0"
		case m.X > 97:
			m.Anchor = "end"
		}
		c.XTicks = append(c.XTicks, m)
	}
	return c
}

// axis puts ticks of a scale to the left.
func (c *chart) axis(s scale, text func(float64) string) {
	for _, v := range s.ticks() {
		c.Rows = append(c.Rows, mark{Y: (1 - s.at(v)) * float64(c.Height), Text: text(v)})
	}
}

// line draws values, and names them where they end.
func (c *chart) line(class, name string, values []float64, s scale) {
	d := linePath(values, s, c.Height)
	if d == "" {
		return
	}
	c.Shapes = append(c.Shapes, shape{Class: "line " + class, D: d})
	c.Keys = append(c.Keys, key{Class: class, Kind: "line", Text: name, Beside: true})
	c.Ends = append(c.Ends, mark{Y: (1 - s.at(last(values))) * float64(c.Height), Text: name, Class: class})
}

// area fills what lies below values and above base.
func (c *chart) area(class, name string, values, base []float64, s scale) {
	d := areaPath(values, base, s, c.Height)
	if d == "" {
		return
	}
	c.Shapes = append(c.Shapes, shape{Class: "area " + class, D: d})
	if name != "" {
		c.Keys = append(c.Keys, key{Class: class, Kind: "area", Text: name})
	}
}

// spread moves the names beside the ends of lines apart, so that each can be read: they keep their order.
func (c *chart) spread() {
	const apart = 15
	slices.SortStableFunc(c.Ends, func(a, b mark) int { return cmp.Compare(a.Y, b.Y) })
	for i := 1; i < len(c.Ends); i++ {
		c.Ends[i].Y = max(c.Ends[i].Y, c.Ends[i-1].Y+apart)
	}
	floor := float64(c.Height)
	for i := len(c.Ends) - 1; i >= 0; i-- {
		c.Ends[i].Y = min(c.Ends[i].Y, floor)
		floor = c.Ends[i].Y - apart
	}
}

// band is a fault in a chart: a shaded time, or a line when it took none.
type band struct {
	X, Width float64 // percent
	Moment   bool
	Number   int
	Text     string
	Lane     int // of its name, from the top; -1 when there is no room for it
	End      bool
}

// EndX is where it ends.
func (b band) EndX() float64 { return percentOf(b.X+b.Width, 100) }

// LabelX is where the name begins, or ends.
func (b band) LabelX() float64 {
	if b.End {
		return b.EndX()
	}
	return b.X
}

// LabelY is its base line.
func (b band) LabelY() int { return 12 + laneHeight*b.Lane }

const (
	laneHeight = 17
	maxLanes   = 4
	// A name is laid out for a plot of 860 pixels, in letters of about 6.3: narrower plots show its number only.
	laneWidth  = 860.0
	letter     = 6.3
	maxBands   = maxListed // what is shaded is listed
	maxNamed   = 44        // letters of a name
	leastShare = 0.15
)

// newBands places faults on a time of total seconds, and their names in lanes. What lies outside is cut off.
func newBands(spans []span, total float64) (bands []band, lanes int) {
	ends := make([]float64, maxLanes) // of the names in each lane, in pixels
	for i := range ends {
		ends[i] = -1
	}
	for _, f := range spans {
		from, to := f.from, max(f.to, f.from)
		if !known(from) || from > total || len(bands) == maxBands {
			continue
		}
		if !known(to) || to > total {
			to = total
		}
		b := band{
			X: percentOf(from, total), Width: percentOf(to-from, total), Moment: (to-from)/total*100 < leastShare,
			Number: f.number, Text: clip(f.text, maxNamed), Lane: -1,
		}
		wide := letter*float64(utf8.RuneCountInString(b.Text)+2) + 12
		left := b.X / 100 * laneWidth
		if left+wide > laneWidth {
			b.End = true
			left = max((b.X+b.Width)/100*laneWidth-wide, 0)
		}
		for lane := range ends {
			if ends[lane] < left {
				b.Lane, ends[lane] = lane, left+wide
				lanes = max(lanes, lane+1)
				break
			}
		}
		bands = append(bands, b)
	}
	return bands, lanes
}

// span is a fault and when it was, in seconds.
type span struct {
	number   int
	text     string
	from, to float64
}

// top is the largest of values that is known, or NaN.
func top(values []float64) float64 {
	m := math.NaN()
	for _, v := range values {
		if known(v) && !(v <= m) {
			m = v
		}
	}
	return m
}

// bottom is the least of values that is known, or NaN.
func bottom(values []float64) float64 {
	m := math.NaN()
	for _, v := range values {
		if known(v) && !(v >= m) {
			m = v
		}
	}
	return m
}

// mean is the mean of those that are known, or NaN.
func mean(values []float64) float64 {
	sum, n := 0.0, 0
	for _, v := range values {
		if known(v) {
			sum, n = sum+v, n+1
		}
	}
	return sum / float64(n)
}

// percentOf is a part of a whole in percent, to a thousandth.
func percentOf(part, whole float64) float64 { return math.Round(part/whole*1e5) / 1e3 }
