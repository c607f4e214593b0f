package sim

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// eventLog keeps what the meter has to hear until the end of a live run, and then replays it in the order of time.
// Real processes report late, one later than the other, but each report says when it was true. An event takes some
// 200 bytes. The methods may be called concurrently. A nil log keeps nothing: add runs the event at once.
type eventLog struct {
	mu     sync.Mutex
	events []event
}

// add keeps an event of a time.
func (l *eventLog) add(at time.Duration, do func()) {
	if l == nil {
		do()
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, event{at, do})
}

// play runs all events by time. Events of one time run in the order in which they were added.
func (l *eventLog) play() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortStableFunc(l.events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	for _, e := range l.events {
		e.do()
	}
	l.events = nil
}

// since converts a time of the wall clock, in ns since 1970, to a time of the run. All processes of a machine share
// that clock.
func (r *run) since(wall int64) time.Duration { return max(0, time.Duration(wall-r.base.UnixNano())) }
