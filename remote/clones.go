package remote

import (
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// mostClones bounds the clones that are kept. There is one per node and timeout, and few timeouts; a cluster of 1000
// primaries still fits, but the clients of nodes that left it must not pile up.
const mostClones = 1024

// clones keeps clients with a timeout of our own for reading and writing. A clone shares the connections of its original;
// making one copies all options, so they are kept. They are never closed: that would close the original's connections.
type clones struct {
	mu   sync.RWMutex
	made map[cloneKey]*redis.Client
}

type cloneKey struct {
	client  *redis.Client
	timeout time.Duration
}

// of returns the clone of a client that reads and writes for at most timeout each.
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
	if c.made == nil || len(c.made) >= mostClones {
		c.made = make(map[cloneKey]*redis.Client) // they are cheap to make again
	}
	c.made[key] = clone
	return clone
}

// pipeline starts a pipeline to a node in which reading and writing take at most timeout each, or what ctx leaves of it.
//
// A client that heeds the context's deadline is used itself, and so with its hooks. For others there is only a clone;
// go-redis gives clones no hooks.
func (s *Redis) pipeline(client *redis.Client, timeout time.Duration) redis.Pipeliner {
	if client == nil {
		return s.foreign.Pipeline()
	}
	o := client.Options()
	if o.ContextTimeoutEnabled && leaves(o.ReadTimeout, timeout) && leaves(o.WriteTimeout, timeout) {
		return client.Pipeline()
	}
	return s.clones.of(client, timeout).Pipeline()
}

// leaves reports whether a client's own timeout leaves a call as much time as the caller grants it: 0 is none at all,
// and a negative one ignores the context too.
func leaves(own, timeout time.Duration) bool { return own == 0 || own >= timeout }
