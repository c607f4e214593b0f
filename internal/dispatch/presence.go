package dispatch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// PresenceTTL is how long a silent process counts: three periods, and a second for a slow refresh.
const PresenceTTL = 10 * time.Second

// attend refreshes this process' presence every period, at each node in use, or at all nodes after MeetAll.
func (d *Dispatcher) attend(ctx context.Context) {
	timer := time.NewTimer(PresencePeriod)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.newNode: // a new node's clock is wanted at once
		case <-timer.C:
		}
		d.meet()
		select {
		case <-d.newNode: // that it met is told below
		default:
		}
		var all sync.WaitGroup
		for _, n := range d.Nodes() {
			all.Go(func() { n.present(ctx, PresenceTTL) })
		}
		all.Wait()
		// A tenth of jitter, so that processes started together do not stay in step.
		timer.Reset(PresencePeriod - time.Duration(d.options.Uniform()*float64(PresencePeriod)/10))
	}
}

// meet learns of all nodes, if there are shards: every process that shares the limit is to be counted at the nodes of all shards
// of a key, though it uses but two of them.
func (d *Dispatcher) meet() {
	if !d.meetAll.Load() {
		return
	}
	for _, id := range d.options.Store.Nodes() {
		d.Node(id)
	}
}

// present tells one node; a ttl of 0 takes leave. What does not arrive is said again a period later.
func (n *Node) present(ctx context.Context, ttl time.Duration) {
	if n.id == "" {
		return
	}
	d, asker := n.dispatcher, ctx
	patience := d.options.Timeout
	if ttl > 0 { // else somebody waits for Close
		patience = d.options.Patience
	}
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	sent := d.now()
	var attempt *failover.Attempt
	if n.guard.State() != failover.Closed { // a probe, which a process that is idle makes nowhere else
		var ok bool
		if attempt, ok = n.guard.Begin(func() {}); !ok {
			return
		}
		defer attempt.Abort()
	}
	c, err := d.options.Store.Presence(ctx, patience, n.id, d.options.Lease(), ttl)
	if attempt != nil {
		verdict := err
		switch {
		// Who closes the Group may be in a hurry, and a node that left its Cluster was not asked at all: nothing was learned.
		case err != nil && asker.Err() != nil, errors.Is(err, remote.ErrNoPresence):
			verdict = context.Canceled
		// Being counted needs other rights than a bucket: only a bucket's call shows that somebody has mended that.
		case err == nil && n.lastCause() == failover.Misconfigured:
			verdict = context.Canceled
		}
		attempt.End(verdict)
	}
	if errors.Is(err, remote.ErrNoPresence) && n.guard.State() != failover.Closed {
		n.dispatcher.forget(n)
		return
	}
	if ttl == 0 {
		return
	}
	if err != nil {
		n.absences.Add(1)
	}
	n.observer.Present(err, attempt != nil)
	if err != nil {
		return
	}
	n.refuses.Store(nil) // it was written
	now := d.now()
	n.stepped(n.clock.learn(sent, now, c.Now))
	before := n.fleet.size()
	n.fleet.learn(now, c.Processes)
	n.observer.Counted(before, n.fleet.size())
}
