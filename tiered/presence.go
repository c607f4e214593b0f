package tiered

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// presenceTTL is how long a silent process counts: three periods, and a second for the slowest.
const presenceTTL = 10 * time.Second

// attend says every period, to every node in use, that this process is here; with Shards, to every node that is known.
func (g *Group) attend(ctx context.Context) {
	timer := time.NewTimer(dispatch.PresencePeriod)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.newNode: // a new node's clock is wanted at once
		case <-timer.C:
		}
		g.meet()
		select {
		case <-g.newNode: // that it met is told below
		default:
		}
		var all sync.WaitGroup
		for _, n := range g.allNodes() {
			all.Go(func() { n.present(ctx, presenceTTL) })
		}
		all.Wait()
		// A tenth of jitter, so that processes started together do not stay in step.
		timer.Reset(dispatch.PresencePeriod - time.Duration(g.options.uniform()*float64(dispatch.PresencePeriod)/10))
	}
}

// meet learns of all nodes, if there are shards: every process that shares the limit is to be counted at the nodes of all shards
// of a key, though it uses but two of them.
func (g *Group) meet() {
	if !g.sharded.Load() {
		return
	}
	for _, id := range g.store.Nodes() {
		g.node(id)
	}
}

// present tells one node; a ttl of 0 takes leave. What does not arrive is said again a period later.
func (n *node) present(ctx context.Context, ttl time.Duration) {
	if n.id == "" {
		return
	}
	g, asker := n.group, ctx
	patience := g.options.Timeout
	if ttl > 0 { // else somebody waits for Close
		patience = g.options.patience()
	}
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	sent := g.now()
	var attempt *failover.Attempt
	if n.guard.State() != failover.Closed { // a probe, which a process that is idle makes nowhere else
		var ok bool
		if attempt, ok = n.guard.Begin(func() {}); !ok {
			return
		}
		defer attempt.Abort()
	}
	c, err := g.store.Presence(ctx, patience, n.id, *g.lease.Load(), ttl)
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
		n.group.forget(n)
		return
	}
	if ttl == 0 {
		return
	}
	n.presence(err, attempt == nil)
	if err != nil {
		return
	}
	n.refuses.Store(nil) // it was written
	now := g.now()
	n.stepped(n.clock.Learn(sent, now, c.Now))
	before := n.fleet.Size()
	n.fleet.Learn(now, c.Processes)
	if after := n.fleet.Size(); after != before {
		g.journal.line(slog.LevelDebug, "another number of processes shares the limits", "node", string(n.id), "from", before, "to", after)
	}
	g.counted.Store(true)
}
