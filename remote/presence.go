package remote

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

const (
	// presenceNames is the number of names that are tried to find a presence set on a node. For a
	// node with 16 of the 16384 slots the search fails with probability e⁻¹⁶.
	presenceNames = slots

	// presenceTries is the number of found names that are called. A slot that is just moving away
	// answers for none.
	presenceTries = 3
)

// ErrNoPresence says that nothing was sent to a node, because no presence set can be on it. The
// node has almost no slots, or is not a node of this store, or not any more.
var ErrNoPresence = errors.New("remote: no presence set can live on this node")

// Presence records that a process is present, and counts those that are; see [Store]. The set is
// the first of a fixed sequence of names that is on the node, so all processes that see the same
// nodes share it. While slots move, processes may disagree for a moment and count too few.
func (s *Redis) Presence(ctx context.Context, timeout time.Duration, node Node, p Process) (Census, error) {
	if err := s.usable(ctx); err != nil {
		return Census{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var poll PollResult
	err := ErrNoPresence
	for i, tries := 0, 0; i < presenceNames && tries < presenceTries; i++ {
		name := s.names.presence(i)
		client, pickErr := s.nodes.pick(ctx, name)
		if pickErr != nil {
			return Census{Poll: poll}, s.failure(pickErr)
		}
		if nodeOf(client) != node {
			continue
		}
		tries++
		o := newCommand(&presence, name, 5)
		o.args = append(o.args, p.ID, p.TTL.Microseconds(), 0, string(p.Announced), p.keep())
		// The first set and the table are in one slot. So the poll goes with the first set's call,
		// and never twice.
		if i == 0 && p.Poll.Seq > 0 {
			poll = s.poll(ctx, timeout, client, &o, &p.Poll)
		} else {
			s.executeOn(ctx, timeout, client, []*command{&o})
		}
		if err = o.cmd.Err(); err == nil {
			c, err := decodeCensus(o.cmd.Val(), p.Announced.policies())
			c.Poll = poll
			return c, err
		}
		// On another node it would be counted there, and the reply would be that node's clock.
		if !isMoved(err) {
			break
		}
	}
	return Census{Poll: poll}, s.failure(err)
}

// poll executes a poll of the table in one pipeline with a call of presence.
func (s *Redis) poll(
	ctx context.Context, timeout time.Duration, client *redis.Client, presence *command, p *lua.Poll,
) PollResult {
	o := newCommand(&standing, s.names.table(), 8)
	o.args = p.Arguments(o.args)
	s.executeOn(ctx, timeout, client, []*command{presence, &o})
	r := PollResult{Sent: true}
	if err := o.cmd.Err(); err != nil {
		r.Err = s.failure(err)
	} else {
		r.Reply, r.Err = decodePoll(o.cmd.Val(), p)
	}
	return r
}
