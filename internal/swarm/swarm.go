package swarm

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Options say what is run. The zero value is one seed, of which everything is drawn.
type Options struct {
	Base     *scenario.Scenario    // what is kept of each scenario, see Draw; nil is nothing
	From     uint64                // the first seed; 0 is 1
	Seeds    int                   // how many; 0 is 1
	Progress func(done, of int)    // told after each seed; must not block. nil tells nobody
	Failed   func(failure Failure) // told of each failure, one at a time; nil tells nobody
}

// Failure is a seed that broke a promise, and the smallest scenario found that breaks the same.
type Failure struct {
	Seed     uint64
	What     string // the metric, "ledger" or "end": the run did not
	Why      string // what was measured, and what was promised
	Scenario *scenario.Scenario
	Drawn    *scenario.Scenario
	Tries    int // runs that it took to shrink it
}

// Result is what came of a swarm.
type Result struct {
	Seeds       int
	Failures    []Failure      // by seed
	Kinds       map[string]int // runs that had a fault of the kind
	Happened    map[string]int // runs in which it did, as of scenario.Happenings
	Bounded     int            // runs with a bound on over-admission
	Over        int            // of these, those in which more than burst + rate·t was admitted
	Nearest     float64        // over-admission by its bound, at most
	NearestSeed uint64
}

// maxShrunk is how many failures are made smaller. More failures have a cause in common.
const maxShrunk = 10

// Run runs one seed after the other, as many at a time as there are processors. An error means that one could not
// be run.
//
// It takes some 0.15 s of a processor per seed, and up to a hundred times that to shrink a failure; the first ten are.
func Run(o *Options) (*Result, error) {
	own := *o
	own.From, own.Seeds = max(own.From, 1), max(own.Seeds, 1)
	res := &Result{Seeds: own.Seeds, Kinds: map[string]int{}, Happened: map[string]int{}}
	var (
		mu      sync.Mutex
		errs    []error
		next    atomic.Uint64
		done    int
		shrunk  atomic.Int64
		workers sync.WaitGroup
	)
	for range min(own.Seeds, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < uint64(own.Seeds); i = next.Add(1) - 1 {
				seed := own.From + i
				run := runner{seed}
				s := Draw(seed, own.Base)
				r, b, err := run.try(s)
				var f Failure
				if err == nil && b.what != "" {
					f = Failure{Seed: seed, What: b.what, Why: b.why, Scenario: s, Drawn: s.Clone()}
					if shrunk.Add(1) <= maxShrunk {
						run.shrink(&f)
					}
				}
				mu.Lock()
				if err != nil {
					errs = append(errs, fmt.Errorf("swarm: seed %d: %w", seed, err))
					next.Store(uint64(own.Seeds)) // and no further one
				} else {
					res.add(seed, s, r)
				}
				if f.What != "" {
					res.Failures = append(res.Failures, f)
					if own.Failed != nil {
						own.Failed(f)
					}
				}
				if done++; own.Progress != nil {
					own.Progress(done, own.Seeds)
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	slices.SortFunc(res.Failures, func(a, b Failure) int { return cmp.Compare(a.Seed, b.Seed) })
	return res, errors.Join(errs...)
}

// add counts what a run showed. r is nil if the run did not end.
func (res *Result) add(seed uint64, s *scenario.Scenario, r *measure.Report) {
	seen := map[string]bool{}
	for i := range s.Faults {
		if k := s.Faults[i].Kind; !seen[k] {
			seen[k] = true
			res.Kinds[k]++
		}
	}
	if r == nil {
		return
	}
	for _, h := range r.Sometimes {
		if h.Count > 0 {
			res.Happened[h.Name]++
		}
	}
	over := false
	for i := range s.Limits {
		m := r.Limits[s.Limits[i].Name]
		over = over || m.OverAdmission > 1
		if bound := Bound(s, i); m.OverAdmission/bound > res.Nearest {
			res.Nearest, res.NearestSeed = m.OverAdmission/bound, seed
		}
	}
	if over {
		res.Over++
	}
}
