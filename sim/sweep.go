package sim

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Sweep runs a scenario once for each combination of its axes' values, each as [Run] does and with
// the same seed, as many at one time as there are processors. All combinations are checked before
// the first is run; an error means that one could not be. Options.Progress is told of all runs
// together.
func Sweep(s *scenario.Scenario, o *Options) (*measure.Sweep, error) {
	cells, scenarios, err := combine(s)
	if err != nil {
		return nil, err
	}
	reports, err := RunAll(scenarios, o)
	if err != nil {
		return nil, err
	}
	for i, r := range reports {
		cells[i].Passed, cells[i].Unseed, cells[i].Metrics = r.Passed, r.Unseed, r.Metrics
		if !cells[i].AsIs {
			r.Expectations, r.Sometimes = nil, nil
		}
	}
	first := reports[0]
	return &measure.Sweep{
		Schema: measure.Schema, Scenario: s.Clone(), Seed: first.Seed, Version: first.Version,
		Axes: s.Clone().Sweep, Cells: cells, Reports: reports,
	}, nil
}

// combine returns a cell and a scenario for each combination of the axes' values. The last axis
// changes first.
func combine(s *scenario.Scenario) (cells []measure.Cell, scenarios []*scenario.Scenario, err error) {
	if s == nil {
		return nil, nil, errors.New("sim: the scenario is nil")
	}
	if len(s.Sweep) == 0 {
		return nil, nil, errors.New("sim: the scenario has no axis: a sweep has at least one, as in `sweep: {fleet.size: [0, 5, 20]}` or --axis fleet.size=0,5,20")
	}
	if err := s.Validate(); err != nil { // each axis and each of its values by itself
		return nil, nil, err
	}
	n := 1
	for _, a := range s.Sweep {
		n *= len(a.Values)
	}
	asIs := s.Clone()
	asIs.Sweep = nil
	written := asIs.String()
	var all []error
	for i := range n {
		c, values := s.Clone(), map[string]string{}
		c.Sweep = nil
		for a, rest := len(s.Sweep)-1, i; a >= 0; a-- {
			axis := s.Sweep[a]
			values[axis.Path] = axis.Values[rest%len(axis.Values)]
			rest /= len(axis.Values)
			if err := c.Set(axis.Path, values[axis.Path]); err != nil {
				return nil, nil, fmt.Errorf("sim: with %q: %w", values, err) // one axis took away what another sets
			}
		}
		if err := c.Validate(); err != nil {
			all = append(all, fmt.Errorf("sim: with %q: %w", values, err))
		}
		cells = append(cells, measure.Cell{Values: values, AsIs: c.String() == written})
		scenarios = append(scenarios, c)
	}
	return cells, scenarios, errors.Join(all...)
}

// RunAll runs scenarios as [Run] does, as many at one time as there are processors, and returns
// their reports in the same order. At an error no further one is begun.
func RunAll(all []*scenario.Scenario, o *Options) ([]*measure.Report, error) {
	if o == nil {
		o = &Options{}
	}
	var total time.Duration
	for _, s := range all {
		if s != nil {
			total += time.Duration(s.Length)
		}
	}
	var (
		told    atomic.Int64 // how far all of them are
		reports = make([]*measure.Report, len(all))
		errs    = make([]error, len(all))
		next    atomic.Int64
		broken  atomic.Bool
		workers sync.WaitGroup
	)
	for range min(len(all), runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(all) && !broken.Load(); i = int(next.Add(1)) - 1 {
				own, last := *o, time.Duration(0)
				if o.Progress != nil {
					own.Progress = func(at, _ time.Duration) {
						o.Progress(time.Duration(told.Add(int64(at-last))), total)
						last = at
					}
				}
				if reports[i], errs[i] = Run(all[i], &own); errs[i] != nil {
					broken.Store(true)
				}
			}
		})
	}
	workers.Wait()
	return reports, errors.Join(errs...)
}
