package sim

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// This file is what the meter is told, until the run is over: what happens afterwards is clearing up.

// asked notes a request, and decided what became of it.
func (r *run) asked(at time.Duration, process, limit int, key string, cost int64) measure.Request {
	return r.meter.Asked(at, process, limit, key, cost)
}

func (r *run) decided(at time.Duration, q measure.Request, d tiered.Decision) {
	if !r.over.Load() {
		r.meter.Decided(at, q, d)
	}
}

// recorded notes both, of a request that a real process told of, or, if it was not heard, never will.
func (r *run) recorded(at, took time.Duration, process, limit int, key string, cost int64, d tiered.Decision, heard bool) {
	if r.over.Load() {
		return
	}
	var q measure.Request
	r.tape.add(at, func() { q = r.meter.Asked(at, process, limit, key, cost) })
	if heard {
		r.tape.add(at+took, func() { r.meter.Decided(at+took, q, d) })
	}
}

// breaker notes a change of a process' breaker.
func (r *run) breaker(at time.Duration, p *process, state string) {
	if !r.over.Load() && !p.dead.Load() {
		r.tape.add(at, func() { r.meter.Breaker(at, p.number, state) })
	}
}

func (r *run) joined(p *process) {
	at := r.at()
	r.tape.add(at, func() { r.meter.Joined(at, p.number) })
}

// died notes that a process has ended, with its last figures if they are known.
func (r *run) died(p *process, s *tiered.Stats) {
	if r.over.Load() {
		return
	}
	at := r.at()
	r.tape.add(at, func() {
		if s != nil {
			r.meter.Sample(at, p.number, s, true)
		}
		r.meter.Died(at, p.number)
	})
}

func (r *run) sample(p *process, last bool) {
	p.sampling.Lock()
	defer p.sampling.Unlock()
	if s := p.stats(); s != nil {
		at := r.at()
		r.tape.add(at, func() { r.meter.Sample(at, p.number, s, last) })
	}
}

// fault notes the beginning or the end of a fault.
func (r *run) fault(i int, ended bool) {
	if !r.over.Load() {
		at := r.at()
		r.tape.add(at, func() { r.meter.Fault(at, i, ended) })
	}
}

// called, answered and happened are told by the stores.
func (r *run) called(at time.Duration, process, n int) {
	if !r.over.Load() {
		r.tape.add(at, func() { r.meter.Called(at, process, n) })
	}
}

func (r *run) answered(process int, code lua.Code, grant int64) {
	switch {
	case r.over.Load():
	case code == lua.Late:
		r.meter.Happened("late_call") // most who sent one have given it up by now
	case code == lua.Stale:
		r.meter.Happened("stale_reply")
	case code == lua.Granted && grant > 0:
		r.meter.Granted(r.at(), process, grant)
	}
}

func (r *run) happened(name string) {
	if !r.over.Load() {
		at := r.at()
		r.tape.add(at, func() { r.meter.Happened(name) })
	}
}

func (r *run) execute(on shelf, process int, c *lua.Call, do func() (lua.Reply, bool)) {
	r.audit.execute(on, process, c, do)
}

// at is the time since the beginning.
func (r *run) at() time.Duration { return time.Since(r.base) }
