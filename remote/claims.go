package remote

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// PlacesName returns the name of the hash that counts the places of a key; see [Store].
func (s *Redis) PlacesName(policy, key string) string { return s.names.places(policy, key) }

// maxClaims is the most claims in one command, because they hold the server together: 64 take half
// a millisecond.
const maxClaims = 64

// claimGroup is the claims that one command carries: those of a server, and on a Cluster of a slot,
// because no script runs over two slots. Nothing is known of a foreign client, so each claim has a
// command of its own.
type claimGroup struct {
	client *redis.Client
	some   []int
	command
}

// ofSlot is where a group goes.
type ofSlot struct {
	client *redis.Client
	slot   int // of a Cluster; otherwise 0
}

// Claim executes claims; see [Store].
func (s *Redis) Claim(ctx context.Context, timeout time.Duration, c *lua.Claims, results []ClaimResult) {
	results = results[:len(c.Each)]
	fail := func(some []int, err error) {
		for _, i := range some {
			results[i] = ClaimResult{Err: err}
		}
	}
	unusable := s.usable(ctx)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var groups []*claimGroup
	open := map[ofSlot]*claimGroup{} // the last group that goes there
	for i, one := range c.Each {
		at, err := ofSlot{}, unusable
		if err == nil {
			if at.client, err = s.nodes.pick(ctx, one.Bucket); err != nil {
				err = s.failure(err)
			}
		}
		if err != nil {
			fail([]int{i}, err)
			continue
		}
		if s.cluster != nil {
			at.slot = slotOf(hashTag(one.Bucket))
		} else if s.foreign != nil {
			at.slot = i
		}
		g := open[at]
		if g == nil || len(g.some) == maxClaims {
			g = &claimGroup{client: at.client}
			open[at], groups = g, append(groups, g)
		}
		g.some = append(g.some, i)
	}
	byClient := map[*redis.Client][]*command{}
	for _, g := range groups {
		g.command = command{script: &atOnce, args: append(make([]any, 0, 3+len(g.some)*9+2), "evalsha", atOnce.sha, len(g.some))}
		for _, i := range g.some {
			g.args = append(g.args, c.Each[i].Bucket)
		}
		g.args = c.Arguments(g.args, g.some)
		byClient[g.client] = append(byClient[g.client], &g.command)
	}
	var all sync.WaitGroup
	left := len(byClient)
	for client, commands := range byClient {
		if left--; left == 0 { // the last one needs no goroutine, and mostly there is one
			s.execute(ctx, timeout, client, commands)
			break
		}
		all.Go(func() { s.execute(ctx, timeout, client, commands) })
	}
	all.Wait()
	for _, g := range groups {
		if err := g.cmd.Err(); err != nil {
			fail(g.some, s.failure(err))
		} else if !c.DecodeClaims(g.cmd.Val(), g.some, func(i int, r lua.ClaimReply) { results[i] = ClaimResult{Reply: r} }) {
			fail(g.some, errShape)
		}
	}
}

// hashTag returns the part of a name that Redis Cluster hashes: what is between the first brace and
// the next closing one.
func hashTag(name string) string {
	_, rest, _ := strings.Cut(name, "{")
	tag, _, ok := strings.Cut(rest, "}")
	if !ok || tag == "" {
		return name
	}
	return tag
}

// PlacesName returns the name of the hash that counts the places of a key; see [Store].
func (m *Memory) PlacesName(policy, key string) string { return naming{}.places(policy, key) }

// Claim executes claims in one atomic step; see [Store]. It never blocks.
func (m *Memory) Claim(ctx context.Context, _ time.Duration, c *lua.Claims, results []ClaimResult) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := ctx.Err()
	if err == nil {
		err = m.down()
	}
	var replies []lua.ClaimReply
	if err == nil {
		replies, err = m.places.Run(m.now(), c)
		err = raised(err)
	}
	for i := range c.Each {
		if results[i] = (ClaimResult{Err: err}); err == nil {
			results[i].Reply = replies[i]
		}
	}
}
