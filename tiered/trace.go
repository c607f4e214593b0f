package tiered

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Trace holds the hooks that receive events. Each may be nil. They are called one after the other on a goroutine of the
// Group. A hook may be slow: no decision waits for it, and events that it does not keep up with are dropped and counted
// in Stats.TraceDropped. If a hook panics, that event is lost, and the log says where the hook panicked. It does not say
// with what value, because that may contain a key.
//
// A hook must not ask a Limiter of the Group, because that is an event too: the hooks would be called for ever. And it must
// not close the Group, because Close waits for the hooks to return, and so until its context ends. Have another goroutine
// do either, and do not wait for it. Group.Stats may be called.
type Trace struct {
	Decision func(Decision)   // every decision, for about 0.3 µs each. A request over several keys is one, and so is a wait
	Lease    func(LeaseEvent) // every call for a bucket that Redis accepted
	State    func(StateEvent) // a breaker's opening, probing and closing
	Error    func(ErrorEvent) // every call that did nothing, or whose answer did not come
	Fault    func(FaultEvent) // other faults of a node or of this process
	Wait     func(WaitEvent)  // the end of every wait, also of one that gives up at once

	Standing func(StandingEvent) // every change of the standing shares: see [Policy].Standing
}

// LeaseEvent is a call that Redis accepted.
type LeaseEvent struct {
	Node, Policy, Key string
	Direct            bool  // tokens for waiting requests, without a lease
	Asked, Granted    int64 // tokens
	Held              int64 // held when it was sent
	Returned          int64 // returned unspent, or refunded
	Settled           int64 // tokens that were admitted without Redis, or charged afterwards, and that this call reports to it
	Forgiven          int64 // of Settled: not charged, because the key is as far below zero as Policy.MaxDebt allows
	LimitNumber       uint8 // number of the limit that refused, or has the fewest tokens left: see [Decision]
	RoundTrip         time.Duration
}

// StateEvent is a change of a node's breaker. The states are "closed", "open" and "probing".
type StateEvent struct {
	Node, From, To string
	Err            error         // what opened it; nil otherwise
	Class          string        // of Err: see [ErrorEvent].Class; "" otherwise
	After          time.Duration // if it closes: how long it was not closed
}

// ErrorEvent is a call to Redis that did nothing, or whose answer did not come. Class says why.
type ErrorEvent struct {
	Node, Policy, Key string
	Err               error
	// Class is one of
	//   "unreachable" no answer came, or no connection
	//   "saturated", "cannot serve", "misconfigured": see NodeStats.Calls
	//   "key fault"  the bucket is of another type, damaged, or not the limiter's
	//   "late"       the call reached Redis after its deadline, and did nothing
	//   "stale"      a newer call had overtaken it, and it did nothing
	Class string
	Asked int64 // tokens
}

// WaitEvent is the end of a wait in [Limiter.WaitN] or [Uses.Wait]. With several keys, Policy and Key are those
// that refused last.
type WaitEvent struct {
	Policy, Key string
	Tokens      int64
	Time        time.Duration // how long it waited
	Err         error         // what Wait returned; nil if the tokens were taken
	Waiting     int64         // calls that still wait, for any key of the policy
}

// StandingEvent is a change of this process' standing shares: of its part of all shares, or of whether those of one
// policy are used. If this process loses its part because it could not renew it, the hook is called up to 3 s later.
type StandingEvent struct {
	StandingStats        // now
	Policy        string // whose shares are used from now on, or not used any more; "" if the process' part changed
	Used          bool   // the shares of Policy are used: all processes split its limits
	Outside       int64  // processes that do not split the limits of Policy
}

// FaultEvent is a fault that is not the error of one call. Fields that do not apply are zero.
type FaultEvent struct {
	// Fault is one of
	//   "state loss"  Redis had lost the bucket of Key: evicted, flushed, or gone with a failover. It was full again
	//   "clock step"  the clock of Node was set. By says how far, and is negative if it was set back
	//   "standstill"  this machine or process stood still for By, or its clock was set forward: all leases were dropped
	//   "other limits" another service has a policy of the same name with other limits. Reported once per policy
	//   "presence"    Node does not count this process any more: Err says why. If Err is nil, Node counts it again
	Fault             string
	Node, Policy, Key string
	By                time.Duration
	Err               error
}

// Event is a state change or a fault, kept for a later reader. It names no key.
type Event struct {
	At    time.Time // the last time, if Count is more than 1
	What  string    // a breaker's new state, "open" or "closed", or the Fault of a [FaultEvent], or "presence again"
	Node  string
	Class string // of the error that opened a breaker: see NodeStats.Outages

	// By is how far a clock was set, how long a process stood still, or, if a breaker closed, how long it was not
	// closed.
	By time.Duration

	Count int64 // events of this kind in a row
}

// tracer passes events to the hooks. They may be slow and must not delay a decision.
type tracer struct {
	hooks  Trace
	calls  *report.Hooks
	recent report.Recent // for Stats, with or without hooks
}

func newTracer(hooks *Trace) *tracer {
	t := &tracer{calls: report.NewHooks()}
	if hooks != nil {
		t.hooks = *hooks
	}
	return t
}

// decision is called only if there is a hook: without one, a decision must not pay for a copy.
func (t *tracer) decision(d Decision) {
	t.calls.Call(func() { t.hooks.Decision(d) })
}

// lease is called only if there is a hook.
func (t *tracer) lease(e LeaseEvent) {
	t.calls.Call(func() { t.hooks.Lease(e) })
}

// state keeps no probing as a recent event: an outage of a minute has a hundred probes.
func (t *tracer) state(e StateEvent) {
	if e.To == "closed" || e.From == "closed" {
		t.recent.Add(report.Event{What: e.To, Node: e.Node, Class: e.Class, By: e.After})
	}
	if t.hooks.State != nil {
		t.calls.Call(func() { t.hooks.State(e) })
	}
}

// failure is called only if there is a hook.
func (t *tracer) failure(e ErrorEvent) {
	t.calls.Call(func() { t.hooks.Error(e) })
}

func (t *tracer) wait(e WaitEvent) {
	if t.hooks.Wait != nil {
		t.calls.Call(func() { t.hooks.Wait(e) })
	}
}

func (t *tracer) standing(e StandingEvent) {
	if t.hooks.Standing != nil {
		t.calls.Call(func() { t.hooks.Standing(e) })
	}
}

func (t *tracer) fault(e FaultEvent) {
	what := e.Fault
	if what == "presence" && e.Err == nil {
		what = "presence again"
	}
	t.recent.Add(report.Event{What: what, Node: e.Node, By: e.By})
	if t.hooks.Fault != nil {
		t.calls.Call(func() { t.hooks.Fault(e) })
	}
}

// recentEvents returns the last events, oldest first.
func (t *tracer) recentEvents() (all []Event) {
	for _, e := range t.recent.List() {
		all = append(all, Event(e))
	}
	return all
}

// hooks are what the engine tells the Group.
func (g *Group) hooks() engine.Hooks {
	h := engine.Hooks{
		Decision: func(t *engine.Told) {
			var d Decision
			tell(&d, t)
			g.trace.decision(d)
		},
		Waited: func(e engine.WaitEnd) {
			g.trace.wait(WaitEvent{
				Policy: e.Limiter.Name, Key: e.Key, Tokens: e.Cost, Time: e.Time, Err: errorOf(e.Err), Waiting: e.Waiting,
			})
		},
		StateLost:  func(b *engine.Bucket, n *dispatch.Node) { healthOf(n).stateLost(b) },
		Standstill: func(by time.Duration) { g.trace.fault(FaultEvent{Fault: "standstill", By: by}) },
	}
	if g.trace.hooks.Lease != nil {
		h.Accepted = func(b *engine.Bucket, n *dispatch.Node, c *lua.Call, r lua.Reply, trip time.Duration) {
			e := LeaseEvent{
				Node: string(n.ID()), Policy: b.Limiter().Name, Key: b.Key(),
				Direct: c.Lease == "", Asked: c.Want, Granted: r.Grant, Held: c.Hold,
				Returned: c.Ret, Settled: c.Debt, Forgiven: r.Forgiven, RoundTrip: trip,
			}
			if r.Flags&lua.Unapplied == 0 {
				e.Returned += c.Refund
			}
			if len(c.Also) > 0 {
				e.LimitNumber = uint8(r.Which)
			}
			g.trace.lease(e)
		}
	}
	if g.trace.hooks.Error != nil {
		h.Failed = func(b *engine.Bucket, n *dispatch.Node, c *lua.Call, err error, class string) {
			g.trace.failure(ErrorEvent{
				Node: string(n.ID()), Policy: b.Limiter().Name, Key: b.Key(), Err: err, Class: class, Asked: c.Want,
			})
		}
	}
	return h
}
