package tiered

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

const (
	// presencePeriod is how often a process says that it is here. It gives the clock of a node that is not used
	// otherwise, and the number of processes.
	presencePeriod = 3 * time.Second

	// presenceTTL is how long a silent process counts: three periods, and a second for the slowest.
	presenceTTL = 10 * time.Second

	// fleetMemory is how long the largest number seen counts: too small a number is the dangerous side, for it divides
	// what a process may admit alone.
	fleetMemory = time.Minute
)

// fleet is the number of processes that share a node's limits: the most seen in the last minute of answered refreshes,
// and at least Options.Processes. It rises at once, falls after a minute, and stays while nobody answers.
type fleet struct {
	mu      sync.Mutex
	least   int64
	most    atomic.Int64  // of seen, for those who do not lock
	seen    []census      // oldest first, falling: an entry goes when a later one is at least as large
	learned time.Duration // the last answered refresh
}

type census struct {
	at        time.Duration
	processes int64
}

// learn notes an answered refresh.
func (f *fleet) learn(now time.Duration, processes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// Who is first to come back after a long outage sees nobody else. What was seen before counts on, as if there had been
	// no silence, until the others are back.
	if silence := now - f.learned; silence > fleetMemory-2*presencePeriod {
		for i := range f.seen {
			f.seen[i].at += silence
		}
	}
	f.learned = now
	for len(f.seen) > 0 && f.seen[len(f.seen)-1].processes <= processes {
		f.seen = f.seen[:len(f.seen)-1]
	}
	f.seen = append(f.seen, census{now, processes})
	for now-f.seen[0].at > fleetMemory {
		f.seen = f.seen[1:]
	}
	f.most.Store(f.seen[0].processes)
}

// size reports the number, ≥ 1.
func (f *fleet) size() int64 { return max(f.most.Load(), f.least, 1) }

// attend says every period, to every node in use, that this process is here; with Shards, to every node that is known.
func (g *Group) attend(ctx context.Context) {
	timer := time.NewTimer(presencePeriod)
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
		timer.Reset(presencePeriod - time.Duration(g.options.uniform()*float64(presencePeriod)/10))
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
	n.stepped(n.clock.learn(sent, now, c.Now))
	before := n.fleet.size()
	n.fleet.learn(now, c.Processes)
	if after := n.fleet.size(); after != before {
		g.journal.line(slog.LevelDebug, "another number of processes shares the limits", "node", string(n.id), "from", before, "to", after)
	}
	g.counted.Store(true)
}
