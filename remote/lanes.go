package remote

import (
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// maxClones bounds the clones that are kept. There is one for each node and timeout, and there are few timeouts. A
// Cluster of 1000 primaries still fits, but the clients of nodes that left the Cluster must not pile up.
const maxClones = 1024

// clones keeps clients with a read and write timeout of our own. A clone shares the connections of its original.
// Making one copies all options, so clones are kept. They are never closed, because that would close the original's
// connections.
type clones struct {
	mu   sync.RWMutex
	made map[cloneKey]*redis.Client
}

type cloneKey struct {
	client  *redis.Client
	timeout time.Duration
}

// of returns a clone of client that spends at most timeout on reading and at most timeout on writing.
func (c *clones) of(client *redis.Client, timeout time.Duration) *redis.Client {
	key := cloneKey{client, timeout}
	c.mu.RLock()
	clone := c.made[key]
	c.mu.RUnlock()
	if clone != nil {
		return clone
	}
	clone = client.WithTimeout(timeout)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil || len(c.made) >= maxClones {
		c.made = make(map[cloneKey]*redis.Client) // they are cheap to make again
	}
	c.made[key] = clone
	return clone
}

// pipeline starts a pipeline to a node. Reading and writing take at most timeout each, or less if ctx ends earlier.
//
// A client that respects the context's deadline is used itself, together with its hooks. Another client is replaced
// by a clone, and go-redis gives clones no hooks.
func (s *Redis) pipeline(client *redis.Client, timeout time.Duration) redis.Pipeliner {
	if client == nil {
		return s.foreign.Pipeline()
	}
	o := client.Options()
	if o.ContextTimeoutEnabled && allows(o.ReadTimeout, timeout) && allows(o.WriteTimeout, timeout) {
		return client.Pipeline()
	}
	return s.clones.of(client, timeout).Pipeline()
}

// allows reports whether a client's own timeout is at least as long as the caller's. A timeout of 0 means no limit.
// A negative one makes go-redis ignore the context too.
func allows(own, timeout time.Duration) bool { return own == 0 || own >= timeout }
