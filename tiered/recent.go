package tiered

import (
	"slices"
	"sync"
	"time"
)

// Event is a state change or a fault, kept for a later reader. It names no key.
type Event struct {
	At    time.Time // the last time, if Count is more than 1
	What  string    // a breaker's new state, "open" or "closed", or the Fault of a [FaultEvent], or "presence again"
	Node  string
	Class string // of the error that opened a breaker: see [NodeStats].Cause

	// By is how far a clock was set, how long a process stood still, or, if a breaker closed, how long it was not
	// closed.
	By time.Duration

	Count int64 // events of this kind in a row
}

// recentEvents is the number of events that are kept: some hours of a bad night, 6 kB.
const recentEvents = 64

// recent keeps the last events. A series of equal events, such as the buckets that a flushed Redis lost, is one
// entry.
type recent struct {
	mu     sync.Mutex
	events []Event
}

func (r *recent) add(e Event) {
	e.At, e.Count = time.Now(), 1
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.events); n > 0 {
		last := &r.events[n-1]
		if last.What == e.What && last.Node == e.Node && last.Class == e.Class {
			last.At, last.By = e.At, e.By
			last.Count++
			return
		}
		if n == recentEvents {
			r.events = slices.Delete(r.events, 0, 1)
		}
	}
	r.events = append(r.events, e)
}

// state skips the probing: an outage of a minute has a hundred probes.
func (r *recent) state(e StateEvent) {
	if e.To == "closed" || e.From == "closed" {
		r.add(Event{What: e.To, Node: e.Node, Class: e.Class, By: e.After})
	}
}

func (r *recent) fault(e FaultEvent) {
	what := e.Fault
	if what == "presence" && e.Err == nil {
		what = "presence again"
	}
	r.add(Event{What: what, Node: e.Node, By: e.By})
}

func (r *recent) list() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}
