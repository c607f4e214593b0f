package dispatch

import (
	"context"
	"slices"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// The node without a name has the jobs whose node is not known yet, as in a Cluster whose map of
// slots is not loaded. It sends none of them. Its senders find the node of each job and push the
// job there, so that calls of one node never wait for another node. Its breaker only counts whether
// nodes are found.

// locate pushes pending jobs to their nodes, and abandons those whose nodes cannot be found.
func (n *Node) locate(room []Pending) result {
	d := n.dispatcher
	jobs := n.take(maxBatch, room)
	if len(jobs) == 0 {
		return idle
	}
	jobs = slices.Clone(jobs) // a batch that was given up may still read it when room is reused
	begun := d.now()
	attempt, ok := n.guard.Begin(func() { // it takes longer than Timeout
		n.pace.noAnswer(d.now())
		n.abandon(jobs, d.now())
		n.freeSender()
	})
	if !ok {
		n.abandon(jobs, d.now())
		return sent
	}
	defer attempt.Abort()
	ctx, cancel := context.WithTimeout(context.Background(), n.pace.patience())
	defer cancel()
	var found []remote.Node
	var err error
	for _, p := range jobs { // if one is not found, none after it is
		var id remote.Node
		if id, err = d.options.Store.Locate(ctx, p.Bucket); err != nil {
			break
		}
		found = append(found, id)
	}
	if len(found) > 0 {
		err = nil
	}
	if err == nil {
		n.heard(d.now() - begun)
	}
	if !attempt.End(err) {
		return givenUp
	}
	n.callsDone(len(found))
	for i, id := range found {
		d.Node(id).Push(jobs[i])
	}
	n.abandon(jobs[len(found):], d.now())
	return sent
}
