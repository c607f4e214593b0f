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

// movedTo reports the node that a cluster node named instead of executing a command, "" for none; and whether that one
// wants to hear ASKING first, because the slot is only on its way to it.
func movedTo(err error) (addr string, asking bool) {
	if addr, ok := redis.IsMovedError(err); ok {
		return addr, false
	}
	addr, asking = redis.IsAskError(err)
	return addr, asking
}

// redirect sends orders, which their node did not execute, to the nodes that it named: at once, where the client that
// follows slots would ask the former node once more and then rest for 8 to 24 ms by default, which is more than a caller
// waits. That client has what is left: orders that were sent on twice, and nodes of which this store has not seen any
// bucket yet. They go with the text of the script, for such a node may not know it.
func (s *Redis) redirect(ctx context.Context, timeout time.Duration, router redis.UniversalClient, moved []*order) {
	if len(moved) == 0 {
		return
	}
	var targets sync.WaitGroup
	for _, o := range moved {
		o.moved = true
	}
	for rest := moved; len(rest) > 0; {
		addr, _ := movedTo(rest[0].cmd.Err())
		var there, others []*order
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
	left := those(moved, func(err error) bool {
		return isMoved(err) || errors.Is(err, redis.ErrClosed) // the node has left the cluster, and was not asked
	})
	for _, o := range left {
		o.asking = false // the router says that itself
	}
	if len(left) > 0 {
		allTexts(left)
		send(ctx, router.Pipeline(), left)
	}
}
