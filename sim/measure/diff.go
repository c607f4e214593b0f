package measure

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Diff compares two reports value by value and returns a line for each that differs, in the order of a report: the
// verdict; the unseed, if the seed is the same; all metrics of the run, the phases and the limits; the expectations;
// and what happened. Two numbers are equal if they differ by at most the tolerance, as a part of the greater one: 0.05
// is 5 %. What one report does not know differs from what the other one knows.
func Diff(a, b *Report, tolerance float64) (lines []string) {
	differ := func(where, what, x, y string) {
		if x != y {
			lines = append(lines, fmt.Sprintf("%s: %s: %s, %s", clean(where), clean(what), clean(x), clean(y)))
		}
	}
	differ("report", "passed", verdict(a.Passed), verdict(b.Passed))
	if a.Seed == b.Seed {
		differ("report", "unseed", a.Unseed, b.Unseed)
	}
	metrics := func(where string, x, y *Metrics) {
		number := func(name string, v, w float64) {
			if (v < 0) != (w < 0) || v >= 0 && math.Abs(v-w) > tolerance*max(v, w)+grain(v) {
				lines = append(lines, fmt.Sprintf("%s: %s: %s, %s", clean(where), name, x.figure(name), y.figure(name)))
			}
		}
		number("offered", float64(x.Offered), float64(y.Offered))
		number("admitted", float64(x.Admitted), float64(y.Admitted))
		number("ideal", float64(x.Ideal), float64(y.Ideal))
		for _, m := range scenario.Metrics {
			number(m.Name, x.Value(m.Name), y.Value(m.Name))
		}
	}
	metrics("all", &a.Metrics, &b.Metrics)
	differ("report", "phases", phaseNames(a), phaseNames(b))
	for _, p := range a.Phases {
		if q := b.phase(p.Name); q != nil {
			metrics(p.Name, &p.Metrics, &q.Metrics)
		}
	}
	limits := func(r *Report) []string { return slices.Sorted(maps.Keys(r.Limits)) }
	differ("report", "limits", fmt.Sprint(limits(a)), fmt.Sprint(limits(b)))
	for _, name := range limits(a) {
		x, y := a.Limits[name], b.Limits[name]
		if slices.Contains(limits(b), name) {
			metrics("limit "+name, &x, &y)
		}
	}
	for i, x := range a.Expectations {
		if i < len(b.Expectations) && b.Expectations[i].Text == x.Text {
			differ("expectations", x.Text, verdict(x.Passed), verdict(b.Expectations[i].Passed))
		}
	}
	for _, x := range a.Sometimes {
		if i := slices.IndexFunc(b.Sometimes, func(y Happening) bool { return y.Name == x.Name }); i >= 0 {
			differ("sometimes", x.Name, happened(x.Count), happened(b.Sometimes[i].Count))
		}
	}
	return lines
}

func phaseNames(r *Report) string {
	var names []string
	for _, p := range r.Phases {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

func happened(n int64) string {
	if n > 0 {
		return "happened"
	}
	return "did not happen"
}
