package remote

import (
	"context"
	"errors"
	"time"
)

const (
	// presenceNames is the number of names that are tried to find a presence set on a node. For a node with 16 of
	// the 16384 slots the search fails with probability e⁻¹⁶.
	presenceNames = slots

	// presenceTries is the number of found names that are called. A slot that is just moving away answers for none.
	presenceTries = 3
)

// ErrNoPresence says that nothing was sent to a node, because no presence set can be on it. The node has almost no
// slots, or is not a node of this store, or not any more.
var ErrNoPresence = errors.New("remote: no presence set can live on this node")

// Presence records that a process is present, and counts those that are; see [Store]. The set is the first of a fixed
// sequence of names that is on the node, so all processes that see the same nodes share it. While slots move, processes
// may disagree for a moment and count too few.
func (s *Redis) Presence(ctx context.Context, timeout time.Duration, node Node, p Process) (Census, error) {
	if err := s.usable(ctx); err != nil {
		return Census{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := ErrNoPresence
	for i, tries := 0, 0; i < presenceNames && tries < presenceTries; i++ {
		name := s.names.presence(i)
		client, pickErr := s.nodes.pick(ctx, name)
		if pickErr != nil {
			return Census{}, s.failure(pickErr)
		}
		if nodeOf(client) != node {
			continue
		}
		tries++
		o := newCommand(&presence, name, 4)
		o.args = append(o.args, p.ID, p.TTL.Microseconds(), 0, string(p.Announced))
		s.executeOn(ctx, timeout, client, []*command{&o})
		if err = o.cmd.Err(); err == nil {
			return decodeCensus(o.cmd.Val(), p.Announced.policies())
		}
		// On another node it would be counted there, and the reply would be that node's clock.
		if !isMoved(err) {
			break
		}
	}
	return Census{}, s.failure(err)
}
