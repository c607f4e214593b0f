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

// refreshPresence refreshes this process' presence every period, at each node in use, or at all nodes after
// UseAllNodes.
func (d *Dispatcher) refreshPresence(ctx context.Context) {
	timer := time.NewTimer(PresencePeriod)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.newNode: // a refresh teaches a new node's clock
		case <-timer.C:
		}
		d.addAllNodes()
		select {
		case <-d.newNode: // a node that addAllNodes has just added is refreshed below
		default:
		}
		var all sync.WaitGroup
		for _, n := range d.Nodes() {
			all.Go(func() { n.reportPresence(ctx, PresenceTTL) })
		}
		all.Wait()
		// A tenth of jitter, so that processes started together do not stay in step.
		timer.Reset(PresencePeriod - time.Duration(d.options.Uniform()*float64(PresencePeriod)/10))
	}
}

// addAllNodes adds all nodes of the store after UseAllNodes. With shards, each process must be counted at the nodes of
// all shards of a key, although it uses only two of them.
func (d *Dispatcher) addAllNodes() {
	if !d.allNodes.Load() {
		return
	}
	for _, id := range d.options.Store.Nodes() {
		d.Node(id)
	}
}

// reportPresence refreshes the presence at one node, or ends it if ttl is 0. If that fails, the next period repeats it.
func (n *Node) reportPresence(ctx context.Context, ttl time.Duration) {
	if n.id == "" {
		return
	}
	d, callerCtx := n.dispatcher, ctx
	timeout := d.options.Timeout
	if ttl > 0 { // otherwise Close waits
		timeout = d.options.ClientTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	sent := d.now()
	var attempt *failover.Attempt
	if n.guard.State() != failover.Closed { // a probe: an idle process makes no other
		var ok bool
		if attempt, ok = n.guard.Begin(func() {}); !ok {
			return
		}
		defer attempt.Abort()
	}
	c, err := d.options.Store.Presence(ctx, timeout, n.id, d.options.Lease(), ttl)
	if attempt != nil {
		verdict := err
		switch {
		// Nothing was learned if the caller of Close did not wait, or if a node that left its Cluster was not asked.
		case err != nil && callerCtx.Err() != nil, errors.Is(err, remote.ErrNoPresence):
			verdict = context.Canceled
		// Presence needs other rights than a bucket, so only a bucket's call can show that they were mended.
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
	n.writeError.Store(nil) // the presence was written
	now := d.now()
	n.stepped(n.clock.learn(sent, now, c.Now))
	before := n.fleet.size()
	n.fleet.learn(now, c.Processes)
	n.observer.Counted(before, n.fleet.size())
}
