package dispatch

import (
	"context"
	"slices"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// The node without a name has the jobs whose node is not known yet: of a Cluster, before its map of slots was loaded. It
// sends none of them. Its senders find out where they belong and hand them over, so that no node's calls wait for
// another's; its breaker is about nothing but the finding out.

// locate hands over what is due, and drops it when its nodes cannot be found.
func (n *Node) locate(room []Pending) result {
	d := n.dispatcher
	jobs := n.take(maxBatch, room)
	if len(jobs) == 0 {
		return idle
	}
	jobs = slices.Clone(jobs) // expired may still read it when room is used again
	drop := func(jobs []Pending) {
		for _, p := range jobs {
			p.Job.Abandon(n, d.now())
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
	ctx, cancel := context.WithTimeout(context.Background(), d.options.Patience)
	defer cancel()
	var found []remote.Node
	var err error
	for _, p := range jobs { // where the first is not found no other is
		var id remote.Node
		if id, err = d.options.Store.Locate(ctx, p.Bucket); err != nil {
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
		d.Node(id).Push(jobs[i])
	}
	drop(jobs[len(found):])
	return sent
}
