package tiered

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"
)

// Trace is told what happens, event by event. Each hook may be nil. They are called one after the other on a goroutine of
// the Group, so they may be slow: what they do not keep up with is dropped, and counted in Stats.TraceDropped; no decision
// waits for them. A hook that panics is logged, with what it panicked with in quotes and cut, and the event lost.
//
// A hook may use the Group, and close it. What it decides itself, on the goroutine that it is called on, and the calls that
// are made for nobody else are told to no hook, or it would be told of its own doings for ever.
type Trace struct {
	Decision func(Decision)   // every decision, of [Strictest] the one that counts, of a wait the last: about 0.3 µs each
	Lease    func(LeaseEvent) // every call for a bucket that Redis accepted
	State    func(StateEvent) // a breaker's opening, probing and closing
	Error    func(ErrorEvent) // every call that was not answered, or did nothing
	Fault    func(FaultEvent) // what else goes wrong, of a node or of this process
	Wait     func(WaitEvent)  // the end of every wait, and who gives up at once
}

// LeaseEvent is a call that Redis accepted.
type LeaseEvent struct {
	Node, Policy, Key string
	Direct            bool  // tokens for requests that waited, without a lease
	Asked, Granted    int64 // tokens
	Held              int64 // in hand when it was sent
	Returned          int64 // given back unspent, or refunded
	Settled           int64 // of what was admitted without Redis, reported to it
	Which             uint8 // of several limits on the key, the one that refused, else the tightest: see [Decision]
	RoundTrip         time.Duration
}

// StateEvent is a change of a node's breaker: "closed", "open", "probing".
type StateEvent struct {
	Node, From, To string
	Err            error         // what opened it; nil otherwise
	Class          string        // of Err: see [NodeStats].Cause; "" otherwise
	After          time.Duration // when it closes: how long it was not closed
}

// ErrorEvent is a call that was not answered, was refused for its bucket alone, or did nothing.
type ErrorEvent struct {
	Node, Policy, Key string
	Err               error
	// Class is a class of errors (see [NodeStats].Cause), or "key fault" of a bucket that is of another type, not ours or
	// damaged, "late" of a call that reached Redis after its deadline, "stale" of one that a newer call had overtaken.
	Class string
	Asked int64 // tokens
}

// WaitEvent is the end of a wait in [Limiter.WaitN] or [Uses.Wait]: of several keys, for the one that refused last.
type WaitEvent struct {
	Policy, Key string
	Tokens      int64
	Time        time.Duration // that it waited
	Err         error         // what Wait returned; nil when the tokens were taken
	Waiting     int64         // calls that still wait, for any key of the policy
}

// FaultEvent is something that goes wrong and is no call's error. What does not concern it is zero.
type FaultEvent struct {
	// Fault is one of
	//   "state loss"  Redis had lost the bucket of Key: evicted, flushed, or gone with a failover. It was full again
	//   "clock step"  the clock of Node was set: By so much, backwards if negative
	//   "standstill"  this machine or process stood still for By, or its clock was set forward: all leases were given up
	//   "presence"    Node does not count this process any more, for Err; when Err is nil, it does again
	Fault             string
	Node, Policy, Key string
	By                time.Duration
	Err               error
}

// traceQueue is how many events may wait for the hooks: some milliseconds of a busy process, some 100 kB.
const traceQueue = 1024

// tracer hands events to the hooks, which may be slow and are not to hold up a decision.
type tracer struct {
	hooks   Trace
	events  chan func()
	caller  caller
	recent  recent // for Stats, whether there are hooks or not
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

// decision is called only if there is a hook: a decision must not cost a copy that nobody reads.
func (t *tracer) decision(d Decision) {
	if !t.caller.inside() {
		t.put(func() { t.hooks.Decision(d) })
	}
}

// quiet reports whether a call that is needed now is needed by a hook, and there are hooks for calls.
func (t *tracer) quiet() bool {
	return (t.hooks.Lease != nil || t.hooks.Error != nil) && t.caller.inside()
}

// lease, too, is called only if there is a hook.
func (t *tracer) lease(e LeaseEvent) {
	t.put(func() { t.hooks.Lease(e) })
}

func (t *tracer) state(e StateEvent) {
	t.recent.state(e)
	if t.hooks.State != nil {
		t.put(func() { t.hooks.State(e) })
	}
}

// failure, too, is called only if there is a hook.
func (t *tracer) failure(e ErrorEvent) {
	t.put(func() { t.hooks.Error(e) })
}

func (t *tracer) wait(e WaitEvent) {
	if t.hooks.Wait != nil && !t.caller.inside() {
		t.put(func() { t.hooks.Wait(e) })
	}
}

func (t *tracer) fault(e FaultEvent) {
	t.recent.fault(e)
	if t.hooks.Fault != nil {
		t.put(func() { t.hooks.Fault(e) })
	}
}

// longestQuote is the most bytes of a panic's text that are logged: enough for a message, and less than a key can have.
const longestQuote = 200

// quote is a value that a hook panicked with, as text that is safe in any log: there may be a key in it, and so whatever a
// client chose to send.
func quote(v any) string {
	text := fmt.Sprint(v)
	if len(text) > longestQuote {
		return strconv.Quote(text[:longestQuote]) + "…"
	}
	return strconv.Quote(text)
}

// run calls the hooks until ctx ends, and then for what has happened by then.
func (t *tracer) run(ctx context.Context, panicked func(any)) {
	call := func(event func()) {
		defer func() {
			if v := recover(); v != nil {
				t.panics.Add(1)
				panicked(v)
			}
		}()
		t.caller.call(event)
	}
	for {
		select {
		case event := <-t.events:
			call(event)
		case <-ctx.Done():
			for range len(t.events) { // and no more: a hook's doings may lead to another event for ever
				call(<-t.events)
			}
			return
		}
	}
}
