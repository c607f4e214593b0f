package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/harness"
	"github.com/tiered-limiter/tiered-limiter/sim/internal/bubble"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Run runs a scenario and reports what was measured. Unless the engine is Live, time is virtual: the run has a
// testing/synctest bubble of its own. An error means that it could not be run. Expectations that were not met are
// in the report and are no error. A nil o means the defaults.
//
// Call it outside of a bubble. It takes some 3 µs of a processor per request, and ten times that per call to Redis
// on the Lua engine and two on the other.
func Run(s *scenario.Scenario, o *Options) (*measure.Report, error) {
	p, err := prepare(s, o)
	if err != nil {
		return nil, err
	}
	return p.run()
}

// ErrUndecided means that requests were not decided a second after the end of a run, and no fault held them up. The
// limiter decides each within Budget, so it is a bug of ours.
var ErrUndecided = errors.New("sim: requests that nobody decides")

// run is a scenario that is being run.
type run struct {
	*plan
	base   time.Time
	meter  *measure.Meter
	engine engine
	fleet  *fleet
	audit  *audit // nil on the engine Live

	networks  []conditions   // by slot, as the engine has them
	traffic   sync.WaitGroup // streams of requests
	requests  sync.WaitGroup // those under way
	undecided atomic.Int64   // streams and clients that make more, and requests that a process has not decided
	finished  atomic.Bool    // nothing is measured any more

	lag harness.LagMeter // live: of all who take part
	log *eventLog        // live: what the meter is told at the end; nil tells it at once

	mu   sync.Mutex
	errs []error
}

// run runs the scenario.
func (p *plan) run() (report *measure.Report, err error) {
	play := func() {
		r := &run{plan: p, base: time.Now(), meter: measure.New(p.scenario)}
		r.fleet = &fleet{run: r}
		if p.engineName == Live {
			r.log = &eventLog{}
		}
		if r.engine, err = p.open(r); err == nil {
			r.base = time.Now() // real processes take some time to be ready
			if p.engineName != Live {
				r.audit = newAudit(r.base, int64(p.options.Processes))
			}
			report, err = r.run()
		}
	}
	if p.engineName == Live {
		play()
	} else {
		bubble.Run(play)
	}
	if report != nil {
		report.Engine, report.Seed, report.Version = p.engineName, p.seed, Version()
		report.FailModes = p.ownFailModes()
	}
	return report, err
}

// open starts the engine of a run.
func (p *plan) open(r *run) (engine, error) {
	switch p.engineName {
	case Lua:
		return newLuaEngine(r, p.seed, p.scenario.Net)
	case Live:
		return newLive(r)
	default:
		return newVirtualEngine(r, p.seed, p.scenario.Net, p.maxProcesses()), nil
	}
}

// run leaves nothing behind: in a bubble nothing may be left.
func (r *run) run() (*measure.Report, error) {
	length := time.Duration(r.scenario.Length)
	if r.engineName == Live {
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		go r.lag.Measure(ctx, 0)
	}
	s := newSchedule(r)
	for i := range r.scenario.Traffic {
		stream := r.newStream(i)
		if stream.what.Shape == "closed" {
			stream.clients(i)
		} else {
			r.traffic.Go(stream.open)
		}
	}
	s.until(length)
	if busy := r.finish(); busy > 0 && len(s.active) == 0 {
		r.fail(fmt.Errorf("%w: %d", ErrUndecided, busy))
	}
	r.log.play()
	if r.engineName == Live {
		r.meter.Live(r.lag.Longest())
	}
	report := r.meter.Report(length)
	s.lift()
	r.traffic.Wait()
	r.requests.Wait()
	err := errors.Join(r.fleet.close(), r.engine.close(), errors.Join(r.errs...))
	report.Audited(r.audit.verdict()) // who went home has given everything back
	return report, err
}

// finish waits until all requests are made and decided and all calls have returned, except those that a fault holds up,
// and takes the last figures. It returns the number of undecided requests. Real streams are late by what the machine
// holds them up, and would go on after the last figures.
func (r *run) finish() (undecided int64) {
	all, _ := r.fleet.live()
	longest := max(r.options.Budget+2*r.options.Timeout, time.Second)
	for end := r.at() + longest; r.at() < end; time.Sleep(time.Millisecond) {
		if r.undecided.Load() == 0 && !slices.ContainsFunc(all, func(p *process) bool { return p.busy() }) {
			break
		}
	}
	for _, p := range all {
		r.sample(p, true)
	}
	r.finished.Store(true)
	return r.undecided.Load()
}

func (r *run) sleepUntil(at time.Duration) { time.Sleep(time.Until(r.base.Add(at))) }

// fail keeps an error that no fault explains.
func (r *run) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}
