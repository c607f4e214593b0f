package report

import (
	"slices"
	"sync"
	"time"
)

// Event is a state change or a fault, kept for a later reader. Its fields are those of the Event of package tiered,
// which describes them.
type Event struct {
	At    time.Time
	What  string
	Node  string
	Class string
	By    time.Duration
	Count int64
}

// recentEvents is the number of events that are kept: some hours of a bad night, 6 kB.
const recentEvents = 64

// Recent keeps the last events. All methods may be called concurrently.
type Recent struct {
	mu     sync.Mutex
	events []Event // oldest first, at most recentEvents; no two neighbors are of one kind
}

// Add adds an event, which happens now. A series of equal events, such as the buckets that a flushed Redis lost, is one
// entry: the last of them, and their number.
func (r *Recent) Add(e Event) {
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

// List returns the events, oldest first.
func (r *Recent) List() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}
