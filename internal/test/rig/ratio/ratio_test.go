package ratio_test

import (
	"math"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ratio"
)

func TestLine(t *testing.T) {
	for _, c := range []struct {
		line ratio.Line
		want string
	}{
		{ratio.Line{Name: "a ÷ b", Value: 0.5, Bound: 0.7}, "a ÷ b\t0.5\t<= 0.7\tok"},
		{ratio.Line{Name: "at the bound", Value: 0.7, Bound: 0.7}, "at the bound\t0.7\t<= 0.7\tok"},
		{ratio.Line{Name: "above", Value: 0.71, Bound: 0.7}, "above\t0.71\t<= 0.7\tMISS"},
		{ratio.Line{Name: "enough", Value: 1.5, Least: true, Bound: 1.25}, "enough\t1.5\t>= 1.25\tok"},
		{ratio.Line{Name: "too little", Value: 1.2, Least: true, Bound: 1.25}, "too little\t1.2\t>= 1.25\tMISS"},
		{ratio.Line{Name: "rounded", Value: 1.23456, Bound: 2}, "rounded\t1.235\t<= 2\tok"},
		{ratio.Line{Name: "large", Value: 123456.7, Bound: 2e6}, "large\t123457\t<= 2000000\tok"},
		{ratio.Line{Name: "only told", Value: 241, Bound: ratio.NoBound}, "only told\t241\tno bound\tok"},
		{ratio.Line{Name: "not measured", Value: math.NaN(), Bound: ratio.NoBound}, "not measured\tNaN\tno bound\tMISS"},
		{ratio.Line{Name: "not measured", Value: math.NaN(), Bound: 1}, "not measured\tNaN\t<= 1\tMISS"},
		{ratio.Line{Name: "not measured", Value: math.NaN(), Least: true, Bound: 1}, "not measured\tNaN\t>= 1\tMISS"},
	} {
		if got := c.line.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestParse(t *testing.T) {
	for _, l := range []ratio.Line{
		{Name: "a ÷ b", Value: 0.5, Bound: 0.7},
		{Name: "a ÷ b", Value: 0.8, Bound: 0.7},
		{Name: "enough", Value: 1.5, Least: true, Bound: 1.25},
		{Name: "only told", Value: 1e9, Bound: ratio.NoBound},
	} {
		if got, ok := ratio.Parse(l.String()); !ok || got != l {
			t.Errorf("%q is read as %v, %t", l, got, ok)
		}
	}
	for _, l := range []ratio.Line{
		{Name: "rounded onto its bound", Value: 0.70001, Bound: 0.7},
		{Name: "not measured", Value: math.NaN(), Bound: 1},
		{Name: "not measured", Value: math.NaN(), Bound: ratio.NoBound},
	} {
		if got, ok := ratio.Parse(l.String()); !ok || got.Holds() {
			t.Errorf("%q is read as %v, %t", l, got, ok)
		}
	}
	for _, text := range []string{
		"", "ok", "--- FAIL: TestRatios (1.00s)", "a\t1\t<= 2", "a\t1\t<= 2\tyes", "a\tx\t<= 2\tok", "a\t1\t= 2\tok", "\t1\t<= 2\tok",
		"ok  \tgithub.com/tiered-limiter/tiered-limiter/tiered\t0.1s\t[no tests to run]", "a\t1\t<=2\tok", "a\t1\t<= x\tok",
	} {
		if got, ok := ratio.Parse(text); ok {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		xs   []float64
		want float64
	}{
		{[]float64{3}, 3},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 100, 2}, 3},
	} {
		if got := ratio.Median(c.xs); got != c.want {
			t.Errorf("the median of %v is %v, not %v", c.xs, got, c.want)
		}
	}
}
