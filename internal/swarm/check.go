package swarm

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// breach is a broken promise; empty means none.
type breach struct{ what, why string }

// runner runs scenarios of one seed.
type runner struct {
	seed uint64
}

// try runs a scenario without its faults to complete its expectations, then runs it, and returns the first that it
// breaks. The report is nil when the run did not end. An error means that it could not be run.
func (run runner) try(s *scenario.Scenario) (*measure.Report, breach, error) {
	Expect(s, nil)
	if err := s.Validate(); err != nil {
		return nil, breach{}, err
	}
	r, b, err := run.run(withoutFaults(s))
	if r == nil || err != nil {
		return nil, b, err
	}
	used := make([]float64, len(s.Limits))
	for i, o := range r.Expectations {
		used[i] = o.Value
	}
	Expect(s, used)
	r, b, err = run.run(s)
	if r == nil || err != nil || b.what != "" {
		return r, b, err
	}
	// What was admitted without Redis is known now.
	for i := range s.Limits {
		m := r.Limits[s.Limits[i].Name]
		most := math.Ceil(Granted(s, i)) + float64(m.Alone)
		if e := (scenario.Expectation{
			Metric: "over_admission", Op: "<=", Value: most,
			Limit: s.Limits[i].Name,
		}); m.OverAdmission > most {
			s.Expect = append(s.Expect, e)
			return r, breach{
				"over-admission-granted",
				fmt.Sprintf("%v, but is %s", &e, measure.Figure(m.OverAdmission, scenario.Tokens)),
			}, nil
		}
	}
	return r, breach{}, nil
}

// run runs a scenario as it is, and returns the first promise that it breaks.
func (run runner) run(s *scenario.Scenario) (r *measure.Report, b breach, err error) {
	defer func() {
		if p := recover(); p != nil { // a bubble in which somebody waits for ever
			r, b, err = nil, breach{"end", fmt.Sprint(p)}, nil
		}
	}()
	r, err = sim.Run(s, &sim.Options{Seed: run.seed})
	switch {
	case errors.Is(err, sim.ErrUndecided):
		return nil, breach{"end", err.Error()}, nil
	case err != nil:
		return nil, breach{}, err
	}
	return r, broken(r), nil
}

// broken returns the first promise that a report breaks.
func broken(r *measure.Report) breach {
	for i, o := range r.Expectations {
		if o.Passed || o.Value < 0 { // what nobody asked for cannot be told
			continue
		}
		e := &r.Scenario.Expect[i]
		what := strings.ReplaceAll(e.Metric, "_", "-")
		if e.After > 0 {
			what += "-healed"
		}
		return breach{what, fmt.Sprintf("%s, but is %s", o.Text, measure.Figure(o.Value, scenario.UnitOf(e.Metric)))}
	}
	return breach{}
}
