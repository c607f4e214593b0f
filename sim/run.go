package sim

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/internal/bubble"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Run runs a scenario in virtual time and reports what was measured. An error means that it could
// not be run. Expectations that were not met are in the report and are no error. A nil o means the
// defaults.
//
// Call it outside of a bubble: the run has a testing/synctest bubble of its own. It takes some 3 µs
// of a processor per request, and twice that per call to Redis.
func Run(s *scenario.Scenario, o *Options) (*measure.Report, error) {
	p, err := prepare(s, o)
	if err != nil {
		return nil, err
	}
	return p.run()
}

// ErrUndecided means that requests were not decided a second after the end of a run, and no fault
// held them up. The limiter decides each within Budget, so it is a bug of ours.
var ErrUndecided = errors.New("sim: requests that nobody decides")

// run is a scenario that is being run.
type run struct {
	*plan
	base    time.Time
	meter   *measure.Meter
	server  *server
	network *network
	fleet   *fleet

	traffic   sync.WaitGroup // streams of requests
	requests  sync.WaitGroup // those under way
	slower    atomic.Int64   // ns by which requests run longer
	undecided atomic.Int64   // streams and clients that make more, and requests that a process has not decided

	mu   sync.Mutex
	errs []error
}

// run runs the scenario.
func (p *plan) run() (report *measure.Report, err error) {
	bubble.Run(func() { report, err = p.newRun().run() })
	if report != nil {
		report.Seed, report.Version = p.seed, Version()
		report.FailModes, report.AtOnceFailMode = p.ownFailModes(), p.ownFailMode(p.atOnce.FailMode)
	}
	return report, err
}

// newRun returns a run that begins now, when its scenario does. It must be called in a bubble.
func (p *plan) newRun() *run {
	time.Sleep(time.Until(p.scenario.Begin()))
	r := &run{plan: p, base: time.Now(), meter: measure.New(p.scenario, p.policies...)}
	r.server = newServer(func() { r.meter.Happened(r.at(), "script_sent") })
	r.network = newNetwork(r.server, r.base, p.scenario.Net, p.maxProcesses())
	r.fleet = &fleet{run: r}
	r.fleet.live.Store(new([]*process))
	return r
}

// run leaves nothing behind: in a bubble nothing may be left.
func (r *run) run() (*measure.Report, error) {
	length := time.Duration(r.scenario.Length)
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
	report := r.meter.Report()
	s.lift()
	r.traffic.Wait()
	r.requests.Wait()
	r.fleet.close()
	r.network.messages.Wait() // in a bubble no time passes after the end
	return report, errors.Join(append(r.errs, r.server.close())...)
}

// finish waits until all requests are made and decided and all calls have returned, except those
// that a fault holds up, and takes the last figures. It returns the number of undecided requests.
func (r *run) finish() (undecided int64) {
	all := *r.fleet.live.Load()
	longest := max(r.options.Budget+2*r.options.Timeout, time.Second)
	for end := r.at() + longest; r.at() < end; time.Sleep(time.Millisecond) {
		if r.undecided.Load() == 0 && !slices.ContainsFunc(all, func(p *process) bool { return p.busy() }) {
			break
		}
	}
	for _, p := range all {
		r.meter.Sample(r.at(), p.number, p.group.Stats(), true)
	}
	return r.undecided.Load()
}

// at returns the time since the beginning.
func (r *run) at() time.Duration { return time.Since(r.base) }

func (r *run) sleepUntil(at time.Duration) { time.Sleep(time.Until(r.base.Add(at))) }

// fail keeps an error that no fault explains; nil is none.
func (r *run) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}
