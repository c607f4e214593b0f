package sim

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// This file is what the meter is told, until the run is over: what happens afterwards is clearing up.

// asked records a request, and decided its decision.
func (r *run) asked(at time.Duration, process, limit int, key string, cost int64) measure.Request {
	return r.meter.Asked(at, process, limit, key, cost)
}

func (r *run) decided(at time.Duration, q measure.Request, d tiered.Decision) {
	if !r.finished.Load() {
		r.meter.Decided(at, q, d)
	}
}

// recorded records a request of a real process and, if the caller heard it, its decision.
func (r *run) recorded(at, took time.Duration, process, limit int, key string, cost int64, d tiered.Decision,
	heard bool,
) {
	if r.finished.Load() {
		return
	}
	var q measure.Request
	r.log.add(at, func() { q = r.meter.Asked(at, process, limit, key, cost) })
	if heard {
		r.log.add(at+took, func() { r.meter.Decided(at+took, q, d) })
	}
}

// breaker records a change of a process' breaker.
func (r *run) breaker(at time.Duration, p *process, state string) {
	if !r.finished.Load() && !p.dead.Load() {
		r.log.add(at, func() { r.meter.Breaker(at, p.number, state) })
	}
}

func (r *run) joined(p *process) {
	at := r.at()
	r.log.add(at, func() { r.meter.Joined(at, p.number) })
}

// died records that a process has ended, with its last figures if they are known.
func (r *run) died(p *process, s *tiered.Stats) {
	if r.finished.Load() {
		return
	}
	at := r.at()
	r.log.add(at, func() {
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
		r.log.add(at, func() { r.meter.Sample(at, p.number, s, last) })
	}
}

// fault records the beginning or the end of a fault.
func (r *run) fault(i int, ended bool) {
	if !r.finished.Load() {
		at := r.at()
		r.log.add(at, func() { r.meter.Fault(at, i, ended) })
	}
}

// called, answered and happened are called by the stores.
func (r *run) called(at time.Duration, process, n int) {
	if !r.finished.Load() {
		r.log.add(at, func() { r.meter.Called(at, process, n) })
	}
}

func (r *run) answered(process int, code lua.Code, grant int64) {
	switch {
	case r.finished.Load():
	case code == lua.Late:
		r.meter.Happened("late_call") // most callers of such a call have given it up
	case code == lua.Stale:
		r.meter.Happened("stale_reply")
	case code == lua.Granted && grant > 0:
		r.meter.Granted(r.at(), process, grant)
	}
}

func (r *run) happened(name string) {
	if !r.finished.Load() {
		at := r.at()
		r.log.add(at, func() { r.meter.Happened(name) })
	}
}

func (r *run) execute(on hashReader, process int, c *lua.Call, do func() (lua.Reply, bool)) {
	r.audit.execute(on, process, c, do)
}

// at returns the time since the beginning.
func (r *run) at() time.Duration { return time.Since(r.base) }
