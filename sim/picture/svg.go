package picture

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

//go:embed svg.tmpl
var svgText string

var svgTemplate = template.Must(template.New("svg").Parse(svgText))

// The lengths of a drawing, in pixels. A phone shows it at three quarters of them, so that its
// letters are 9 pixels high there.
const (
	svgWidth, svgLeft, svgRight  = 480, 52, 12
	svgPlot                      = 96 // the height of a plot
	svgTitle, svgLine, svgMargin = 24, 19, 30
	svgLetters                   = 62 // in a line of text
)

// drawing is a picture of what was offered and admitted in several runs, one below the other.
type drawing struct {
	Width, Height, PlotWidth, PlotHeight, Left, Lower int
	Say                                               string
	Panels                                            []panel
	Legend                                            []entry
}

// panel is a run in a drawing.
type panel struct {
	Title                string
	TitleAt, Top, Bottom int
	Texts                []entry
	Rows, Times          []entry
	Faults               []span
	Lines                []line
}

// entry is a text somewhere, with the line that it explains in a legend.
type entry struct {
	X, Y int
	Text string
	Line line
}

// span is a fault, in pixels.
type span struct {
	X, Width int
	Text     string
}

// plainly says what some faults are to who has not read about them.
var plainly = map[string]string{"blackhole": "no Redis", "kill": "no Redis", "freeze": "no Redis"}

// SVG writes one drawing of several runs, for a document: what was offered and admitted over time,
// on one scale. It has colors for light and for dark, and its own paper, so that it can be read on
// a page of either. The same reports make the same bytes.
func SVG(w io.Writer, names []string, all []*measure.Report) error {
	d := &drawing{
		Width: svgWidth, PlotWidth: svgWidth - svgLeft - svgRight, PlotHeight: svgPlot, Left: svgLeft,
	}
	at, called, lines := 0, called(names, all), timelines(all)
	for i, r := range all {
		if lines[i] == nil {
			return fmt.Errorf("picture: the report of %s has no series: there is nothing to draw", called[i])
		}
		c := lines[i].rates(cmp.Or(r.Scenario, &scenario.Scenario{}))
		p := panel{Title: called[i], TitleAt: at + svgTitle, Lines: c.Lines}
		at = p.TitleAt
		for _, text := range wrapped(r.Cost(), svgLetters) {
			at += svgLine
			p.Texts = append(p.Texts, entry{X: 12, Y: at, Text: text})
		}
		p.Top = at + 14
		p.Bottom = p.Top + svgPlot
		for k, row := range c.Rows {
			if len(c.Rows) > 4 && k%2 == 1 { // they would touch
				continue
			}
			p.Rows = append(p.Rows, entry{Y: p.Top + int(row.At*svgPlot/float64(c.Height)), Text: row.Text})
		}
		for _, t := range c.Times {
			p.Times = append(p.Times, entry{X: svgLeft + int(t.At*float64(d.PlotWidth)/100), Text: t.Text})
		}
		for _, f := range c.Faults {
			p.Faults = append(p.Faults, span{
				svgLeft + int(f.From*float64(d.PlotWidth)/100), int(f.Width * float64(d.PlotWidth) / 100), cmp.Or(plainly[f.Name], f.Name),
			})
		}
		d.Say += called[i] + ": " + c.Say + " "
		at = p.Bottom + svgMargin
		d.Panels = append(d.Panels, p)
		if len(c.Lines) > len(d.Legend) {
			d.Legend = nil
			for _, l := range c.Lines {
				d.Legend = append(d.Legend, entry{Text: l.Name, Line: l})
			}
		}
	}
	for i := range d.Legend {
		at += svgLine
		d.Legend[i].X, d.Legend[i].Y = 12, at
	}
	d.Height = at + 14
	return svgTemplate.Execute(w, d)
}

// wrapped is a text in lines of so many letters.
func wrapped(text string, letters int) (lines []string) {
	for _, word := range strings.Fields(text) {
		last := len(lines) - 1
		if last < 0 || len(lines[last])+1+len(word) > letters {
			lines = append(lines, word)
			continue
		}
		lines[last] += " " + word
	}
	return lines
}
