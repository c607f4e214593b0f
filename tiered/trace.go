package tiered

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
)

// Trace holds hooks that receive events. Each may be nil. They are called one after the other on a
// goroutine of the Group, and may be slow: no decision waits for them, and events that they do not
// keep up with are dropped and counted in Stats. If one panics, that event is lost, and the log
// says where, but not with what value, which may contain a key.
//
// A hook must not ask a Limiter of the Group, because that is an event too, nor close the Group,
// because Close waits for the hooks. Have another goroutine do either, and do not wait for it.
// Group.Stats may be called.
type Trace struct {
	Decision func(Decision) // every decision, for about 0.3 µs each. A request over several keys is one, and so is a wait
	Lease    func(Event)    // every call for a bucket that Redis accepted
	Error    func(Event)    // every call that did nothing, or whose answer did not come: Class says why
	State    func(Event)    // a breaker's opening, probing and closing: What is its new state, From the last one
	Fault    func(Event)    // other faults of a node or of this process: What says which
	Wait     func(Event)    // the end of every wait, also of one that gives up at once
	Standing func(Event)    // every change of the standing shares, or of whether those of Policy are used
}

// Event is what a hook is told, and Stats keeps. Other fields are zero.
type Event struct {
	At time.Time

	// What is the name of the hook in lower case, or for State "open", "closed" or "probing", for
	// Standing "shares used", "shares unused" or "share", and for Fault
	//   "state loss"     Redis had lost the bucket of Key, so it was full again: evicted, flushed, or gone with a failover
	//   "clock step"     the clock of Node was set by Time, which is negative if it was set back
	//   "standstill"     this machine or process stood still for Time, or its clock was set forward: all leases are over
	//   "other limits"   another service has a policy of the same name with other limits. Told once per policy
	//   "presence"       Node does not count this process any more, because of Err; "presence again": it does
	What         string
	From         string // of State: the state before
	Node, Policy string
	Key          string `json:"-"` // not in JSON nor in String, because it may be a secret; never in Stats

	// Class is that of Err, for Error and for a State that is open: "unreachable" (no answer or no
	// connection), "saturated", "cannot serve" or "misconfigured" (see NodeStats.Calls), "refused"
	// (misconfigured for this call), "key fault" (the bucket is of another type, damaged, or not
	// the limiter's), or "late" or "stale", which did nothing: after its deadline, or overtaken by
	// a newer call.
	Class string
	Err   error         // of Wait: what Wait returned
	Time  time.Duration // of the round trip, of the wait, or for which a breaker that closes was not closed
	Count int64         // in Stats: events of this kind in a row, of which At and Time are those of the last

	Asked       int64 // tokens, of a call or of a wait
	Granted     int64 // of a Lease, as the next six
	Held        int64 // held when it was sent
	Returned    int64 // returned unspent, or refunded
	Settled     int64 // admitted without Redis, or charged afterwards, and reported by this call
	Forgiven    int64 // of Settled: not charged, because the key is as far below zero as Policy.MaxDebt allows
	Direct      bool  // tokens for waiting requests, without a lease
	LimitNumber uint8 // see [Decision]
	Waiting     int64 // of Wait: calls that still wait, for any key of the policy
	Outside     int64 // of Standing: processes that do not split the limits of Policy

	// Of Standing, as in Stats. If the part is lost, because it could not be renewed, it is told up
	// to 3 s later.
	Fraction   float64
	Members    int64
	Quarantine bool
}

// String says what happened, without the key.
func (e Event) String() string {
	text := e.What
	for _, part := range []struct{ name, value string }{
		{"node", e.Node}, {"policy", e.Policy}, {"class", e.Class},
	} {
		if part.value != "" {
			text += " " + part.name + "=" + part.value
		}
	}
	if e.Asked != 0 || e.Granted != 0 {
		text += fmt.Sprintf(" asked=%d granted=%d", e.Asked, e.Granted)
	}
	if e.Time != 0 {
		text += fmt.Sprintf(" time=%v", e.Time)
	}
	if e.Count > 1 {
		text += fmt.Sprintf(" count=%d", e.Count)
	}
	if e.Err != nil {
		text += fmt.Sprintf(" error=%q", e.Err)
	}
	return text
}

// tracer passes events to the hooks. They may be slow and must not delay a decision.
type tracer struct {
	hooks Trace
	calls *report.Hooks

	mu     sync.Mutex
	recent []Event // for Stats, with or without hooks: oldest first, at most maxRecent; no two neighbors are of one kind
}

// maxRecent is the number of recent events that are kept: some hours of a bad night, 20 kB.
const maxRecent = 64

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

// call tells a hook, if there is one.
func (t *tracer) call(hook func(Event), e Event) {
	if hook != nil {
		t.send(hook, e)
	}
}

// send is apart, because the event escapes to the heap.
func (t *tracer) send(hook func(Event), e Event) {
	e.At = time.Now()
	t.calls.Call(func() { hook(e) })
}

// state keeps no probing as a recent event: an outage of a minute has a hundred probes.
func (t *tracer) state(e Event) {
	if e.What == "closed" || e.From == "closed" {
		t.remember(e)
	}
	t.call(t.hooks.State, e)
}

func (t *tracer) fault(e Event) {
	t.remember(e)
	t.call(t.hooks.Fault, e)
}

// remember keeps what Stats shows of an event, without key and error. A series of equal events,
// such as the buckets that a flushed Redis lost, is one entry: the last of them, and their number.
func (t *tracer) remember(e Event) {
	e = Event{At: time.Now(), What: e.What, Node: e.Node, Class: e.Class, Time: e.Time, Count: 1}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.recent); n > 0 {
		if last := t.recent[n-1]; last.What == e.What && last.Node == e.Node && last.Class == e.Class {
			e.Count += last.Count
			t.recent = t.recent[:n-1]
		} else if n == maxRecent {
			t.recent = slices.Delete(t.recent, 0, 1)
		}
	}
	t.recent = append(t.recent, e)
}

// recentEvents returns the last events, oldest first.
func (t *tracer) recentEvents() []Event {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.recent)
}
