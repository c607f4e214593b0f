package tiered

import (
	"slices"
	"sync"
	"time"
)

// Event is a state change or a fault, for somebody who comes later. It names no key.
type Event struct {
	At    time.Time // the last time, where Count is more than 1
	What  string    // "open", "closed" of a breaker; a [FaultEvent]'s Fault; "presence again" when it is over
	Node  string
	Class string        // of the error that opened a breaker: see [NodeStats].Cause
	By    time.Duration // by how much a clock was set or a process stood still; of a breaker that closed, how long it was not
	Count int64         // so many of one kind in a row
}

// recentEvents is how many events are kept: some hours of a bad night, 6 kB.
const recentEvents = 64

// recent keeps the last events. A crowd of one kind, as of buckets that a flushed Redis lost, is one.
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

// state leaves out the probing: an outage of a minute has a hundred probes.
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
