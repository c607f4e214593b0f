package tiered

import (
	"context"
	"slices"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// The node without a name has the jobs whose node is not known yet: of a Cluster, before its map of slots was loaded. It
// sends none of them. Its senders find out where they belong and hand them over, so that no node's calls wait for
// another's; its breaker is about nothing but the finding out.

// locate hands over what is due, and drops it when its nodes cannot be found.
func (n *node) locate(room []due) result {
	g := n.group
	jobs := n.take(maxBatch, room)
	if len(jobs) == 0 {
		return idle
	}
	jobs = slices.Clone(jobs) // expired may still read it when room is used again
	drop := func(jobs []due) {
		for _, d := range jobs {
			d.job.drop(n, g.now())
		}
	}
	attempt, ok := n.guard.Begin(func() { // it takes longer than Timeout
		drop(jobs)
		n.returned(len(jobs))
		n.replace()
	})
	if !ok {
		drop(jobs)
		n.returned(len(jobs))
		return sent
	}
	defer attempt.Abort()
	ctx, cancel := context.WithTimeout(context.Background(), g.options.patience())
	defer cancel()
	var found []remote.Node
	var err error
	for _, d := range jobs { // where the first is not found no other is
		var id remote.Node
		if id, err = g.store.Locate(ctx, d.bucket); err != nil {
			break
		}
		found = append(found, id)
	}
	if len(found) > 0 {
		err = nil
	}
	if !attempt.End(err) {
		return givenUp
	}
	n.returned(len(jobs))
	for i, id := range found {
		g.node(id).push(jobs[i])
	}
	drop(jobs[len(found):])
	return sent
}
