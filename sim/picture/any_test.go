package picture_test

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
)

// Any report that has no more than 600 steps is drawn: no number leaves its drawing, none is NaN, no size is too large.
func TestAnyReport(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 1e4), rapid.SampledFrom([]float64{-1, 0, 1, math.NaN(), math.Inf(1), math.MaxFloat64, 5e-324}))
		series := func(name string) []float64 { return rapid.SliceOfN(number, 0, 40).Draw(t, name) }
		counts := func(name string) []int64 { return rapid.SliceOfN(rapid.Int64(), 0, 40).Draw(t, name) }
		r := &measure.Report{
			Series: measure.Series{
				StepS: rapid.Float64Range(1e-6, 1e6).Draw(t, "step"), Offered: series("offered"), Admitted: series("admitted"), Ideal: series("ideal"),
				Limit: series("limit"), Alone: series("alone"), Calls: series("calls"), MaxUs: series("max"), Open: series("open"), Jain: series("jain"),
				Granted: counts("granted"), Spent: counts("spent"), Returned: counts("returned"), Burnt: counts("burnt"), Held: counts("held"),
			},
			Metrics: measure.Metrics{OverAdmission: number.Draw(t, "over"), Jain: number.Draw(t, "jain"), DecideMax: number.Draw(t, "max")},
		}
		for range rapid.IntRange(0, 5).Draw(t, "faults") {
			r.Faults = append(r.Faults, measure.FaultSpan{Text: rapid.String().Draw(t, "fault"), FromS: number.Draw(t, "from"), ToS: number.Draw(t, "to")})
		}
		for range rapid.IntRange(0, 5).Draw(t, "breakers") {
			b := measure.BreakerStrip{Process: rapid.String().Draw(t, "process")}
			for range rapid.IntRange(0, 9).Draw(t, "changes") {
				b.Changes = append(b.Changes, measure.BreakerChange{AtS: number.Draw(t, "at"), State: rapid.SampledFrom([]string{"open", "closed", "probing", "gone", "?"}).Draw(t, "state")})
			}
			r.Breakers = append(r.Breakers, b)
		}
		check(t, draw(t, r))
	})
}

// check looks at the numbers in a page's drawings.
func check(t rapid.TB, page string) {
	n := parse(t, page)
	for d := range n.Descendants() {
		for _, a := range d.Attr {
			if strings.Contains(a.Val, "NaN") || strings.Contains(a.Val, "Inf") {
				t.Errorf("<%s %s=%q>", d.Data, a.Key, a.Val)
			}
		}
	}
	for _, s := range find(n, "svg", "shapes") {
		box := numbersIn(attribute(s, "viewbox") + attribute(s, "viewBox"))
		for _, p := range find(s, "path", "") {
			for _, c := range corners(attribute(p, "d")) {
				if c[0] < 0 || c[0] > box[2] || c[1] < 0 || c[1] > box[3] {
					t.Errorf("a corner at %v is outside of %v: %.100s", c, box, attribute(p, "d"))
				}
			}
		}
	}
}
