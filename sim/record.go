package sim

import (
	"fmt"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// meter is what a run tells: a *measure.Meter, or less in a test of the run itself.
type meter interface {
	Asked(at time.Duration, process, limit int, key string, cost int64) measure.Request
	Decided(at time.Duration, r measure.Request, d tiered.Decision)
	Called(at time.Duration, process, n int)
	Granted(at time.Duration, process int, tokens int64)
	Breaker(at time.Duration, process int, state string)
	Joined(at time.Duration, process int)
	Died(at time.Duration, process int)
	Fault(at time.Duration, i int, ended bool)
	Happened(name string)
	Sample(at time.Duration, process int, s *tiered.Stats, last bool)
	Step() time.Duration
	Report(end time.Duration) *measure.Report
}

// asked is a request that is under way: what the meter keeps, and what the hash of the run needs.
type asked struct {
	measure.Request
	at   time.Duration
	hash uint64
}

// asked notes a request.
func (r *run) asked(process, limit int, key string, cost int64) asked {
	at := r.at()
	return asked{
		Request: r.meter.Asked(at, process, limit, key, cost), at: at,
		hash: mix(uint64(process)<<32|uint64(limit)) ^ mix(hash(key)+uint64(cost)),
	}
}

// decided notes what became of it.
func (r *run) decided(process int, q asked, d *tiered.Decision) {
	if r.over.Load() {
		return
	}
	at := r.at()
	r.meter.Decided(at, q.Request, *d)
	r.trace(mix(uint64(q.at)) ^ mix(uint64(at))<<1 ^ q.hash ^ uint64(d.Reason)<<8 ^ uint64(d.Tier))
}

// trace adds an event to the hash of the run: a sum, so that the order of what happens at one instant does not show.
func (r *run) trace(event uint64) { r.sum.Add(mix(event)) }

// unseed is that hash, as a report has it.
func (r *run) unseed() string { return fmt.Sprintf("%016x", r.sum.Load()) }

// breaker notes a change of a process' breaker.
func (r *run) breaker(p *process, state string) {
	if r.over.Load() || p.port.dead.Load() {
		return
	}
	at := r.at()
	r.meter.Breaker(at, p.number, state)
	r.trace(mix(uint64(at)) ^ hash(state) ^ uint64(p.number))
}

func (r *run) joined(p *process) {
	r.meter.Joined(r.at(), p.number)
	r.happened("process_joined")
}

// died notes that a process has ended, with its last figures.
func (r *run) died(p *process) {
	if r.over.Load() {
		return
	}
	r.sample(p, true)
	r.meter.Died(r.at(), p.number)
	r.happened("process_died")
}

func (r *run) sample(p *process, last bool) {
	s := p.group.Stats()
	r.meter.Sample(r.at(), p.number, &s, last)
}

// called, granted and happened are told by the stores, until the run is over.
func (r *run) called(process, n int) {
	if !r.over.Load() {
		r.meter.Called(r.at(), process, n)
	}
}

func (r *run) granted(process int, tokens int64) {
	if !r.over.Load() {
		r.meter.Granted(r.at(), process, tokens)
	}
}

func (r *run) happened(name string) {
	if !r.over.Load() {
		r.meter.Happened(name)
	}
}
