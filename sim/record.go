package sim

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// This file is what the meter is told, until the run is over: what happens afterwards is clearing up.

func (r *run) decided(q measure.Request, d tiered.Decision) {
	if !r.finished.Load() {
		r.meter.Decided(r.at(), q, d)
	}
}

// breaker records a change of a process' breaker.
func (r *run) breaker(p *process, state string) {
	if !r.finished.Load() && !p.dead.Load() {
		r.meter.Breaker(r.at(), p.number, state)
	}
}

// died records that a process has ended, and its last figures.
func (r *run) died(p *process) {
	if !r.finished.Load() {
		r.meter.Sample(r.at(), p.number, p.stats(), true)
		r.meter.Died(r.at(), p.number)
	}
}

func (r *run) sample(p *process, last bool) {
	p.sampling.Lock()
	defer p.sampling.Unlock()
	r.meter.Sample(r.at(), p.number, p.stats(), last)
}

// fault records the beginning or the end of a fault.
func (r *run) fault(i int, ended bool) {
	if !r.finished.Load() {
		r.meter.Fault(r.at(), i, ended)
	}
}

// called, answered and happened are called by the stores. answered is of an executed call, of which its process may
// never hear.
func (r *run) called(process, n int) {
	if !r.finished.Load() {
		r.meter.Called(r.at(), process, n)
	}
}

func (r *run) answered(process int, reply *lua.Reply) {
	switch {
	case r.finished.Load():
	case reply.Code == lua.Late:
		r.meter.Happened(r.at(), "late_call") // most callers of such a call have given it up
	case reply.Code == lua.Stale:
		r.meter.Happened(r.at(), "stale_reply")
	case reply.Code == lua.Granted && reply.Grant > 0:
		r.meter.Granted(r.at(), process, reply.Grant)
	}
}

// happened records one of scenario.Happenings.
func (r *run) happened(name string) {
	if !r.finished.Load() {
		r.meter.Happened(r.at(), name)
	}
}

// at returns the time since the beginning.
func (r *run) at() time.Duration { return time.Since(r.base) }
