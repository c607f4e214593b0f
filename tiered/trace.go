package tiered

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
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
	//   "saturated", "cannot serve", "misconfigured": see [NodeStats]
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

// traceQueue bounds the events that wait for the hooks: some milliseconds of a busy process, about 100 kB.
const traceQueue = 1024

// tracer passes events to the hooks. They may be slow and must not delay a decision.
type tracer struct {
	hooks   Trace
	events  chan func()
	recent  recent // for Stats, with or without hooks
	dropped atomic.Int64
	panics  atomic.Int64
}

func newTracer(hooks *Trace) *tracer {
	t := &tracer{events: make(chan func(), traceQueue)}
	if hooks != nil {
		t.hooks = *hooks
	}
	return t
}

func (t *tracer) put(event func()) {
	select {
	case t.events <- event:
	default:
		t.dropped.Add(1)
	}
}

// decision is called only if there is a hook: without one, a decision must not pay for a copy.
func (t *tracer) decision(d Decision) {
	t.put(func() { t.hooks.Decision(d) })
}

// lease is called only if there is a hook.
func (t *tracer) lease(e LeaseEvent) {
	t.put(func() { t.hooks.Lease(e) })
}

func (t *tracer) state(e StateEvent) {
	t.recent.state(e)
	if t.hooks.State != nil {
		t.put(func() { t.hooks.State(e) })
	}
}

// failure is called only if there is a hook.
func (t *tracer) failure(e ErrorEvent) {
	t.put(func() { t.hooks.Error(e) })
}

func (t *tracer) wait(e WaitEvent) {
	if t.hooks.Wait != nil {
		t.put(func() { t.hooks.Wait(e) })
	}
}

func (t *tracer) standing(e StandingEvent) {
	if t.hooks.Standing != nil {
		t.put(func() { t.hooks.Standing(e) })
	}
}

func (t *tracer) fault(e FaultEvent) {
	t.recent.fault(e)
	if t.hooks.Fault != nil {
		t.put(func() { t.hooks.Fault(e) })
	}
}

// panicOf says what a function of the user panicked with, and where: "string in main.planOf, line 17". The value may
// contain a key, so only its type is said, and the text of a runtime error, which has only numbers and types. It must be
// called by the deferred function that recovered v.
func panicOf(v any) string {
	what := fmt.Sprintf("%T", v)
	if err, ok := v.(runtime.Error); ok {
		what = err.Error()
	}
	var stack [32]uintptr
	frames := runtime.CallersFrames(stack[:runtime.Callers(0, stack[:])])
	panicking := false
	for {
		f, more := frames.Next()
		switch ofRuntime := strings.HasPrefix(f.Function, "runtime."); {
		case f.Function == "runtime.gopanic":
			panicking = true
		case panicking && !ofRuntime && f.Function != "":
			return fmt.Sprintf("%s in %s, line %d", what, f.Function, f.Line)
		case !more:
			return what
		}
	}
}

// run calls the hooks until ctx ends, and then for the events that are queued by then.
func (t *tracer) run(ctx context.Context, panicked func(any)) {
	call := func(event func()) {
		defer func() {
			if v := recover(); v != nil {
				t.panics.Add(1)
				panicked(v)
			}
		}()
		event()
	}
	for {
		select {
		case event := <-t.events:
			call(event)
		case <-ctx.Done():
			for range len(t.events) { // no more than these: a hook may cause events for ever
				call(<-t.events)
			}
			return
		}
	}
}
