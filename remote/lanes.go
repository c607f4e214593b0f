package remote

import (
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// maxLanes bounds the lanes that are kept. There is at most one for each node and timeout, and
// there are few timeouts. A Cluster of 1000 primaries still fits, but the clients of nodes that
// left the Cluster must not pile up.
const maxLanes = 1024

// lanes keeps the way to each node, for each timeout.
type lanes struct {
	borrowed bool // the clients are a user's, with hooks perhaps; never changes

	mu   sync.RWMutex
	made map[laneKey]*lane
}

type laneKey struct {
	client  *redis.Client
	timeout time.Duration
}

// lane is the way to a node: a client that spends at most a timeout on reading and at most that on
// writing, and its idle pipelines. A pipeline is four allocations, so it is reused.
type lane struct {
	client *redis.Client
	idle   sync.Pool // of *pipeline
}

// pipeline is a pipeline and room for its commands. go-redis copies the list of commands before it
// sends it, so hooks do not see cmds.
type pipeline struct {
	redis.Pipeliner
	cmds []redis.Cmder
}

// pipeline returns an empty pipeline.
func (l *lane) pipeline() *pipeline {
	if p, ok := l.idle.Get().(*pipeline); ok {
		return p
	}
	return &pipeline{Pipeliner: l.client.Pipeline()}
}

// reuse keeps a pipeline that was executed.
func (l *lane) reuse(p *pipeline) {
	clear(p.cmds)
	p.cmds = p.cmds[:0]
	l.idle.Put(p)
}

// of returns the lane of a client and a timeout.
func (l *lanes) of(client *redis.Client, timeout time.Duration) *lane {
	key := laneKey{client, timeout}
	if l.borrowed && heeds(client) {
		key.timeout = 0 // there is one lane, because the context says how long a call may take
	}
	l.mu.RLock()
	one := l.made[key]
	l.mu.RUnlock()
	if one != nil {
		return one
	}
	one = &lane{client: l.bounded(client, timeout)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.made == nil || len(l.made) >= maxLanes {
		l.made = make(map[laneKey]*lane) // they are cheap to make again
	}
	l.made[key] = one
	return one
}

// bounded returns a client that spends at most timeout on reading and at most timeout on writing,
// or less if the context ends earlier.
//
// A borrowed client that heeds the context's deadline is used itself, together with its hooks. Its
// own timeouts hold too, as for all that its owner does. Another client is replaced by a clone, and
// go-redis gives clones no hooks. A clone shares the connections of its original. It is never
// closed, because that would close the original's connections.
func (l *lanes) bounded(client *redis.Client, timeout time.Duration) *redis.Client {
	if o := client.Options(); heeds(client) && (l.borrowed || allows(o.ReadTimeout, timeout) && allows(o.WriteTimeout, timeout)) {
		return client
	}
	return client.WithTimeout(timeout)
}

// heeds reports whether a client heeds the deadline of a context.
func heeds(client *redis.Client) bool {
	o := client.Options()
	return heedsBy(o.ContextTimeoutEnabled, o.ReadTimeout, o.WriteTimeout)
}

// heedsBy is heeds by a client's settings. A negative timeout makes go-redis ignore the context.
func heedsBy(enabled bool, read, write time.Duration) bool { return enabled && read >= 0 && write >= 0 }

// allows reports whether a client's own timeout is at least as long as the caller's. A timeout of 0
// means no limit.
func allows(own, timeout time.Duration) bool { return own == 0 || own >= timeout }
