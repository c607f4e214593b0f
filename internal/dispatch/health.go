package dispatch

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/histogram"
)

// Stats are a node's figures since it was first used.
type Stats struct {
	Calls        int64    // sent
	Failed       [8]int64 // calls without an answer, by failover.Class
	LateReplies  int64    // answers that came after Timeout
	LateCalls    int64    // calls that reached the node after their deadline
	StaleReplies int64    // calls that a newer one had overtaken
	Steps        int64    // times that the node's clock was set
	StepsBack    int64    // buckets that accepted a step back
	Absences     int64    // refreshes of presence that were not answered
	Queued       int      // pending calls now

	Changes    [3]int64 // of the breaker, by the new failover.State
	Outages    int64    // times that the breaker opened when it was closed
	OutageTime time.Duration
	Cause      failover.Class // of the last opening; valid if Outages > 0
}

// health holds the figures of a node.
type health struct {
	calls, lateReplies, lateCalls, staleReplies, steps, stepsBack, absences atomic.Int64

	failed  [8]atomic.Int64 // calls without an answer, by failover.Class
	changes [3]atomic.Int64 // of the breaker, by the new failover.State
	outages atomic.Int64    // times that the breaker opened when it was closed
	trips   histogram.Histogram

	// The rest is guarded by Node.mu.

	open       bool           // the breaker is not closed
	probed     bool           // probeUntilBack is at work
	openedAt   time.Duration  // the start of the present outage, or of the last one
	outageTime time.Duration  // of all outages that are over
	cause      failover.Class // of the error that last opened the breaker or kept it open
	whyOpen    error          // ErrOpen and that error; nil before
}

// Stats returns the node's figures.
func (n *Node) Stats() Stats {
	s := Stats{
		Calls: n.calls.Load(), LateReplies: n.lateReplies.Load(), LateCalls: n.lateCalls.Load(),
		StaleReplies: n.staleReplies.Load(), Steps: n.steps.Load(), StepsBack: n.stepsBack.Load(),
		Absences: n.absences.Load(),
	}
	for i := range s.Failed {
		s.Failed[i] = n.failed[i].Load()
	}
	for i := range s.Changes {
		s.Changes[i] = n.changes[i].Load()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s.Queued = len(n.queue) - n.head
	s.Outages, s.OutageTime, s.Cause = n.outages.Load(), n.outageTime, n.cause
	if n.open {
		s.OutageTime += n.dispatcher.now() - n.openedAt
	}
	return s
}

// Trips returns the histogram of all answered round trips.
func (n *Node) Trips() *histogram.Histogram { return &n.trips }

// Outages reports how often the breaker opened.
func (n *Node) Outages() int64 { return n.outages.Load() }

// WhyOpen is the error of a call that was not made, because the breaker is not closed: it wraps ErrOpen, and the error
// that last opened the breaker or kept it open.
func (n *Node) WhyOpen() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.whyOpen == nil { // it is about to be recorded
		return ErrOpen
	}
	return n.whyOpen
}

// changed records a change of the breaker.
func (n *Node) changed(e failover.Event) {
	at := e.At.Sub(n.dispatcher.options.Base)
	n.changes[e.To].Add(1)
	n.setUnhealthy(e.To != failover.Closed)
	c := Change{From: e.From, To: e.To, Err: e.Err}
	switch e.To {
	case failover.Open:
		c.Class = failover.Classify(e.Err)
		n.opened(at, c.Class, e.Err, e.From == failover.Closed)
	case failover.Closed:
		c.After = n.closed(at)
	}
	n.observer.Changed(c)
}

// opened records that the breaker opened, or that it stays open after a probe.
func (n *Node) opened(at time.Duration, class failover.Class, err error, first bool) {
	why := fmt.Errorf("%w: %w", ErrOpen, err)
	n.mu.Lock()
	defer n.mu.Unlock()
	if first {
		n.outages.Add(1)
		n.open, n.openedAt = true, at
		if !n.probed {
			n.probed = true
			n.dispatcher.tasks.Go(func() { n.probeUntilBack(n.dispatcher.ctx) })
		}
	}
	switch class { // a probe that had nothing to send has another class
	case failover.Unreachable, failover.Saturated, failover.CannotServe, failover.Misconfigured:
		n.cause, n.whyOpen = class, why
	}
}

// closed records that the breaker closed, and returns for how long it was not closed.
func (n *Node) closed(at time.Duration) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closedAt = n.dispatcher.now()
	after := at - n.openedAt
	n.open = false
	n.outageTime += after
	return after
}

// stepped records that the node's clock was set, unless by is 0.
func (n *Node) stepped(by time.Duration) {
	if by != 0 {
		n.steps.Add(1)
		n.observer.Stepped(by)
	}
}
