package sim

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Run runs a scenario, its modes side by side in bubbles that are subtests of t, and reports what was measured. An error
// means that it could not be run; broken promises are in the report and do not fail t.
//
// Call it outside of a bubble. [Outage] takes about 3 s of a processor per mode: a third of a millisecond per call to
// Redis, a tenth of that per request.
func Run(t *testing.T, s Scenario) (*Report, error) {
	t.Helper()
	if err := s.validate(); err != nil {
		return nil, err
	}
	r := &Report{Scenario: s, Modes: make([]ModeReport, len(s.Modes))}
	errs := make([]error, len(s.Modes))
	names := make([]string, len(s.Modes))
	for i, m := range s.Modes {
		names[i] = m.String()
	}
	inBubbles(t, names, func(i int) { r.Modes[i], errs[i] = runMode(&s, s.Modes[i]) })
	return r, errors.Join(errs...)
}

// runMode runs a scenario in one mode. It must be called in a bubble.
func runMode(s *Scenario, mode tiered.FailMode) (report ModeReport, err error) {
	base := time.Now()
	until := func(t time.Duration) { time.Sleep(time.Until(base.Add(t))) }
	m := newMeter(s, base)
	limit := s.Hot.Policy.Limit
	whole := m.watch(limit, 0, s.Length)
	alone := m.watch(limit, 0, s.To)
	recovering := m.watch(limit, s.From, min(s.To+recovery, s.Length))
	later := m.watch(limit, s.To+recovery, max(s.Length, s.To+recovery))

	f := newFleet(s.Processes)
	defer func() { err = errors.Join(err, f.close()) }()
	keys := make([]string, s.Cold.Keys)
	for i := range keys {
		keys[i] = fmt.Sprintf("user %d", i)
	}
	var loads sync.WaitGroup
	defer loads.Wait()
	starts := named(s.Seed, "starts")
	for i := range s.Processes {
		// One after the other, and none at an instant at which another does something.
		slot := startup / time.Duration(s.Processes)
		until(slot*time.Duration(i) + time.Duration(starts.Int64N(int64(slot))))
		if err := f.start(i, s, mode, base); err != nil {
			return report, err
		}
		l := &load{
			process: f.processes[i], meter: m, coldKeys: keys, seed: s.Seed, end: base.Add(s.Length),
			hot:  s.Hot.Load * perSecond(limit) / float64(s.Processes),
			cold: s.Cold.Load * perSecond(s.Cold.Policy.Limit) * float64(s.Cold.Keys) / float64(s.Processes),
		}
		loads.Go(l.run)
	}

	e := evidence{mode: mode, processes: s.Processes, limit: limit, budget: budget(s), outage: s.To - s.From}
	var looks []look
	until(s.From)
	looks = append(looks, f.look())
	e.fleet = looks[0].fleet
	f.swallow(requests | replies)
	until(s.To)
	looks = append(looks, f.look())
	f.heal()
	until(s.Length)
	looks = append(looks, f.look())
	loads.Wait()

	hot, cold := f.stats(s.Hot.Policy.Name), f.stats(s.Cold.Policy.Name)
	e.whole, e.alone, e.recovering, e.later = whole.over(), alone.over(), recovering.over(), later.over()
	if s.Length <= s.To+recovery {
		e.later = math.NaN()
	}
	e.without = m.seen[tiered.Shared] + m.seen[tiered.Open]
	phases := m.result()
	for i := range phases {
		p := &phases[i]
		calls := looks[i].calls
		if i > 0 {
			calls -= looks[i-1].calls
		}
		p.Calls, p.Open = float64(calls)/(p.To-p.From).Seconds(), looks[i].open
		e.longest = max(e.longest, p.Longest)
	}
	e.uncounted = uncounted(m.seen, sum(hot, cold))
	return ModeReport{Mode: mode, Phases: phases, Checks: e.checks(), Trace: m.trace, evidence: e}, nil
}

// budget is Options.Budget with its default.
func budget(s *Scenario) time.Duration {
	if s.Options.Budget == 0 {
		return tiered.DefaultBudget
	}
	return s.Options.Budget
}

// look is what the processes' Stats say at an instant.
type look struct {
	calls int64   // to Redis, so far
	open  float64 // share of the processes whose breaker is not closed
	fleet int64   // the least number of processes that any of them knows of
}

func (f *fleet) look() look {
	l := look{fleet: int64(len(f.processes))}
	f.each(func(p *process) {
		n := p.node()
		l.calls += n.Calls
		if n.Breaker != "closed" {
			l.open += 1 / float64(len(f.processes))
		}
		l.fleet = min(l.fleet, n.Processes)
	})
	return l
}

// stats are all processes' figures of a policy.
func (f *fleet) stats(policy string) (total tiered.PolicyStats) {
	f.each(func(p *process) { total = sum(total, p.group.Stats().Policies[policy]) })
	return total
}

// sum adds up what is compared.
func sum(a, b tiered.PolicyStats) tiered.PolicyStats {
	a.Granted += b.Granted
	a.Spent += b.Spent
	a.Returned += b.Returned
	a.Burnt += b.Burnt
	a.Held += b.Held
	a.Shared += b.Shared
	a.Open += b.Open
	return a
}
