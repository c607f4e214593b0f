package remote

import (
	"context"
	"errors"
	"time"
)

const (
	// presenceNames is how many names are tried for a presence set that lives on a node: enough to find one, but for a
	// chance of e⁻¹⁶, for a node that has 16 of the 16384 slots.
	presenceNames = slots

	// presenceTries is how many of the names found are called: a slot that is just moving away answers for none.
	presenceTries = 3
)

// ErrNoPresence says that nothing was sent to a node, because no presence set can live there. It has next to no slots, or
// is no node of this store, or not any more.
var ErrNoPresence = errors.New("remote: no presence set can live on this node")

// Presence says that a process is here; see [Store]. The set is the first of a fixed sequence of names that lives on the
// node, so all processes that see the same nodes share it. While slots move they may disagree for a moment, and count
// too few.
func (s *Redis) Presence(
	ctx context.Context, timeout time.Duration, node Node, id string, ttl time.Duration,
) (Census, error) {
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
		o := newOrder(&presence, name, 3)
		o.args = append(o.args, id, ttl.Microseconds(), 0)
		s.executeOn(ctx, timeout, client, []*order{&o})
		if err = o.cmd.Err(); err == nil {
			return decodeCensus(o.cmd.Val())
		}
		// Elsewhere it would count for, and tell the clock of, another node.
		if !isMoved(err) {
			break
		}
	}
	return Census{}, s.failure(err)
}
