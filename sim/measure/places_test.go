package measure_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

func withPlaces(x *scenario.Scenario) { x.AtOnce.Places = 3 }

// What runs is counted by key over all processes, from the moment before a part on to its end, and
// what a process runs ends with it.
func TestPlaces(t *testing.T) {
	m := measure.New(made(withPlaces, expecting("at_once", "<=", 2, 12*s, 15*s), expecting("full", "<=", 0.5, 25*s, 0)))
	m.Joined(0, 0)
	m.Joined(0, 1)
	took := func(at time.Duration, process int, key string) { m.Took(at, process, 0, key, ms) }
	took(1*s, 0, "a")
	took(1*s, 0, "b")
	took(2*s, 1, "a")
	took(3*s, 1, "a")
	took(4*s, 1, "")
	m.Ended(5*s, 1, "a")
	took(16*s, 0, "b") // a and b are both at two
	took(17*s, 0, "b")
	m.Died(18*s, 0) // one of a and three of b
	m.Ended(19*s, 0, "b")
	took(19*s, 0, "b") // came too late
	took(26*s, 1, "")
	took(26*s, 1, "c")
	took(27*s, 1, "")
	r := m.Report()
	for name, c := range map[string]struct{ runs, full float64 }{
		"before": {3, 1.0 / 5}, "during": {3, 0}, "after": {1, 2.0 / 3},
	} {
		p := phase(t, r, name)
		near(t, name+" at once", p.AtOnce, c.runs)
		near(t, name+" full", p.Full, c.full)
	}
	near(t, "at once", r.Metrics.AtOnce, 3)
	near(t, "full", r.Metrics.Full, 3.0/11)
	near(t, "of a limit", r.Limits["api"].AtOnce, -1)
	want(t, "outcomes", fmt.Sprint(r.Expectations[0].Value, r.Expectations[0].Passed, r.Expectations[1].Passed), "2 true false")
	near(t, "longest", r.Metrics.DecideMax, 0.001)
	step := func(at time.Duration) float64 { return r.Series.Running[int(at/(100*ms))] }
	want(t, "series", fmt.Sprint(step(0), step(1500*ms), step(2500*ms), step(4*s), step(15*s), step(17500*ms), step(18500*ms), step(29*s)),
		"0 1 2 3 2 3 1 1")
	for _, h := range r.Sometimes {
		if h.Name == "place_refused" {
			want(t, h.Name, h.Count, 3)
		}
	}
	none := measure.New(made()).Report()
	near(t, "without places", none.Metrics.AtOnce, -1)
	want(t, "a series without places", len(none.Series.Running), 0)
}
