package remote

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// isMoved reports whether a cluster node did not execute a command because another has its slot.
func isMoved(err error) bool {
	addr, _ := movedTo(err)
	return addr != ""
}

// movedTo returns the node that a Cluster node named instead of executing a command, or "". asking reports whether
// the named node must get ASKING first, because the slot is still being migrated to it.
func movedTo(err error) (addr string, asking bool) {
	if addr, ok := redis.IsMovedError(err); ok {
		return addr, false
	}
	addr, asking = redis.IsAskError(err)
	return addr, asking
}

// redirect sends commands that their node did not execute to the nodes that it named. It does so at once: the
// ClusterClient would ask the former node again and then pause for 8 to 24 ms by default, which is longer than a
// caller waits. The ClusterClient gets the rest: commands that were redirected twice, and those for nodes on which
// this store has not seen a bucket yet. They carry the text of the script, because such a node may not know it.
func (s *Redis) redirect(ctx context.Context, timeout time.Duration, router redis.UniversalClient, moved []*command) {
	if len(moved) == 0 {
		return
	}
	var targets sync.WaitGroup
	for _, o := range moved {
		o.redirected = true
	}
	for rest := moved; len(rest) > 0; {
		addr, _ := movedTo(rest[0].cmd.Err())
		var there, others []*command
		for _, o := range rest {
			to, asking := movedTo(o.cmd.Err())
			if to != addr {
				others = append(others, o)
				continue
			}
			o.asking = asking
			there = append(there, o)
		}
		if client := s.nodes.at(addr); client != nil {
			targets.Go(func() { s.executeOn(ctx, timeout, client, there) })
		}
		rest = others
	}
	targets.Wait()
	left := failedWith(moved, func(err error) bool {
		return isMoved(err) || errors.Is(err, redis.ErrClosed) // the node has left the Cluster, and was not asked
	})
	for _, o := range left {
		o.asking, o.withText = false, true // the router sends ASKING itself
	}
	if len(left) > 0 {
		(&pipeline{Pipeliner: router.Pipeline()}).send(ctx, left)
	}
}
