package dispatch

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/histogram"
)

// Figures are a node's figures since it was first used. The node's observer reads them.
type Figures struct {
	Calls        atomic.Int64    // sent
	Failed       [8]atomic.Int64 // calls without an answer, by failover.Class
	LateReplies  atomic.Int64    // answers that came after Timeout
	LateCalls    atomic.Int64    // calls that reached the node after their deadline
	StaleReplies atomic.Int64    // calls that a newer one had overtaken
	Steps        atomic.Int64    // times that the node's clock was set
	StepsBack    atomic.Int64    // buckets that accepted a step back
	Absences     atomic.Int64    // refreshes of presence that were not answered
	Changes      [3]atomic.Int64 // of the breaker, by the new failover.State
	Outages      atomic.Int64    // times that the breaker opened when it was closed
	Trips        histogram.Histogram
}

// health is what a node knows of its outages. Node.mu guards it.
type health struct {
	open       bool           // the breaker is not closed
	probed     bool           // probeUntilBack is at work
	openedAt   time.Duration  // the start of the present outage, or of the last one
	outageTime time.Duration  // of all outages that are over
	cause      failover.Class // of the error that last opened the breaker or kept it open
	whyOpen    error          // ErrOpen and that error; nil before
}

// AllOutages returns how often the breaker opened, for how long it was not closed in all, and the
// class of the error that opened it last, if it did.
func (n *Node) AllOutages() (count int64, total time.Duration, cause failover.Class) {
	n.mu.Lock()
	defer n.mu.Unlock()
	total = n.outageTime
	if n.open {
		total += n.dispatcher.now() - n.openedAt
	}
	return n.Outages.Load(), total, n.cause
}

// WhyOpen is the error of a call that was not made, because the breaker is not closed: it wraps
// ErrOpen, and the error that last opened the breaker or kept it open.
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
	n.Changes[e.To].Add(1)
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
		n.Outages.Add(1)
		n.open, n.openedAt = true, at
		n.countUnhealthy(1)
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
	n.countUnhealthy(-1)
	n.outageTime += after
	return after
}

// stepped records that the node's clock was set, unless by is 0.
func (n *Node) stepped(by time.Duration) {
	if by != 0 {
		n.Steps.Add(1)
		n.observer.Stepped(by)
	}
}
