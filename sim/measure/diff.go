package measure

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Tolerance is how far two values may be apart and still count as equal: by a part of the greater one, or by an
// amount of their unit, whichever is more.
type Tolerance struct {
	Relative float64 // 0.05 is 5 %

	Tokens, Ratio, Seconds, PerSec, Count float64
}

// Noise is the Tolerance of [Diff]: what two runs with different seeds are often apart.
var Noise = Tolerance{Relative: 0.05, Tokens: 10, Ratio: 0.01, Seconds: 2 * millisecond, PerSec: 2, Count: 1}

// Apart is the Tolerance of two engines: they draw other delays, so that this is as far apart as two seeds of one are.
// Over-admission and what is lost go by single leases.
var Apart = Tolerance{Relative: 0.15, Tokens: 150, Ratio: 0.03, Seconds: 0.5, PerSec: 10, Count: 6}

// Late returns t with room for a machine that held up processes for at most lag at a time (see [Report].LagMs). A
// process that is late decides on what was true then, at a rate in tokens per second, and its calls time out.
func (t Tolerance) Late(lag time.Duration, rate float64) Tolerance {
	t.Tokens += lag.Seconds() * rate
	t.Ratio += lag.Seconds() / 10 // no run is shorter than ten seconds
	t.Seconds += lag.Seconds()
	return t
}

// Equal reports whether two values of a unit are within the tolerance.
func (t Tolerance) Equal(a, b float64, u scenario.Unit) bool {
	return len(t.number(nil, "", "", a, b, u)) == 0
}

// Difference is a metric in which two reports are further apart than a Tolerance allows.
type Difference struct {
	Where  string // "all", a phase, "limit NAME", "expectations", "sometimes", "report"
	Metric string // of package scenario, or offered, admitted, ideal; an expectation; a happening; a field
	A, B   float64
	Unit   scenario.Unit
	Text   [2]string // instead of A and B where they are no numbers
}

// String is the difference in a line. What is not known is "-".
func (d Difference) String() string {
	a, b := Figure(d.A, d.Unit), Figure(d.B, d.Unit)
	if d.Text != [2]string{} {
		a, b = clean(d.Text[0]), clean(d.Text[1])
	}
	return fmt.Sprintf("%s: %s: %s, %s", clean(d.Where), clean(d.Metric), a, b)
}

// Diff reports what differs between two reports by more than [Noise].
func Diff(a, b *Report) []Difference { return Noise.Diff(a, b) }

// Diff reports what differs between two reports, metric by metric, in the order of a report: the verdict and the
// unseed, where seed and engine say that it should be the same; all metrics of the run, the phases and the limits;
// which expectations were met; what happened in one run and not in the other. What one of them cannot tell differs
// from what the other can.
func (t Tolerance) Diff(a, b *Report) []Difference {
	var all []Difference
	words := func(where, what, x, y string) {
		if x != y {
			all = append(all, Difference{Where: where, Metric: what, A: -1, B: -1, Text: [2]string{x, y}})
		}
	}
	words("report", "passed", verdict(a.Passed), verdict(b.Passed))
	if a.Engine == b.Engine && a.Seed == b.Seed && a.Unseed != "" && b.Unseed != "" {
		words("report", "unseed", a.Unseed, b.Unseed)
	}
	metrics := func(where string, x, y *Metrics) {
		for _, m := range tokenMetrics {
			all = t.number(all, where, m.name, float64(m.get(x)), float64(m.get(y)), scenario.Tokens)
		}
		for _, m := range scenario.Metrics {
			all = t.number(all, where, m.Name, x.Value(m.Name), y.Value(m.Name), m.Unit)
		}
	}
	metrics("all", &a.Metrics, &b.Metrics)
	for _, p := range a.Phases {
		if q := b.phase(p.Name); q != nil {
			metrics(p.Name, &p.Metrics, &q.Metrics)
		}
	}
	words("report", "phases", phaseNames(a), phaseNames(b))
	for _, name := range slices.Sorted(maps.Keys(a.Limits)) {
		x, y := a.Limits[name], Metrics{}
		if other, ok := b.Limits[name]; ok {
			y = other
			metrics("limit "+name, &x, &y)
		}
	}
	words("report", "limits", fmt.Sprint(slices.Sorted(maps.Keys(a.Limits))),
		fmt.Sprint(slices.Sorted(maps.Keys(b.Limits))))
	for i, x := range a.Expectations {
		if i < len(b.Expectations) && b.Expectations[i].Text == x.Text {
			words("expectations", x.Text, verdict(x.Passed), verdict(b.Expectations[i].Passed))
		}
	}
	for _, x := range a.Sometimes {
		if i := slices.IndexFunc(b.Sometimes, func(y Happening) bool { return y.Name == x.Name }); i >= 0 {
			words("sometimes", x.Name, happened(x.Count), happened(b.Sometimes[i].Count))
		}
	}
	return all
}

// number adds a difference if two values are too far apart.
func (t Tolerance) number(all []Difference, where, metric string, a, b float64, u scenario.Unit) []Difference {
	floor := [...]float64{t.Tokens, t.Ratio, t.Seconds, t.PerSec, t.Count}[u] // in the order of the units
	known := (a < 0) == (b < 0)
	if known && math.Abs(a-b) <= max(floor, t.Relative*max(a, b))+grain(a) {
		return all
	}
	return append(all, Difference{Where: where, Metric: metric, A: a, B: b, Unit: u})
}

// tokenMetrics are what a report has of a part besides scenario.Metrics.
var tokenMetrics = []struct {
	name string
	get  func(*Metrics) int64
}{
	{"offered", func(m *Metrics) int64 { return m.Offered }},
	{"admitted", func(m *Metrics) int64 { return m.Admitted }},
	{"ideal", func(m *Metrics) int64 { return m.Ideal }},
}

func phaseNames(r *Report) string {
	var names []string
	for _, p := range r.Phases {
		names = append(names, p.Name)
	}
	return fmt.Sprint(names)
}

func verdict(passed bool) string {
	if passed {
		return "PASS"
	}
	return "FAIL"
}

func happened(n int64) string {
	if n > 0 {
		return "happened"
	}
	return "did not happen"
}
