package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Memory is the shared tier inside one process: the same buckets, replies and refusals as the scripts give on [Redis],
// bit for bit. It is for development and for services that run as a single process; in a test it stands in for Redis,
// outage included ([Memory.Fail]). What it holds ends with the process, and nobody else sees it.
//
// Calls are atomic one by one, as on Redis, under one mutex that is held for less than a microsecond each, a sweep of
// many leases apart. Nothing blocks, no goroutine is started and no timer: buckets whose time to live is over are
// collected by the calls that follow, two looked at per call, so memory is bounded by the buckets that are alive plus
// those that ended since the hand last came round.
//
// Its clock is the wall clock at its creation plus the monotonic time since: it never steps but by [Memory.Step], and in a
// testing/synctest bubble it is the bubble's.
//
// Use [NewMemory]; the zero value is refused by [Check].
type Memory struct {
	base time.Time // when wall was read; its monotonic part is what counts

	mu       sync.Mutex
	wall     int64 // µs since 1970 at base, and what Step added
	closed   bool
	failure  error
	buckets  map[string]*memoryKey
	ring     []*memoryKey // the same buckets in no order, for the collection
	hand     int          // next place in ring to be looked at
	presence memoryPresence
	step     memoryStep // of the call that runs
}

// memoryNode is the one node of a Memory.
const memoryNode Node = "memory"

// collected is how many buckets each call looks at. One would keep up with calls that create a bucket each; with two,
// the hand comes round in half the calls that it took to create what it passes.
const collected = 2

// NewMemory returns an empty store.
func NewMemory() *Memory {
	now := time.Now()
	return &Memory{base: now, wall: now.UnixMicro(), buckets: make(map[string]*memoryKey)}
}

var _ Store = (*Memory)(nil)

// Key reports the name of a token bucket: the one that [Redis] would use with an empty prefix, long keys hashed.
func (m *Memory) Key(policy, key string) string { return m.Name(Kind{}, policy, key) }

// Name reports the name of a bucket of any kind.
func (m *Memory) Name(k Kind, policy, key string) string { return naming{}.bucket(k, policy, key) }

// Node reports the same node for every bucket.
func (m *Memory) Node(string) Node { return memoryNode }

// Nodes reports the one node.
func (m *Memory) Nodes() []Node { return []Node{memoryNode} }

// Locate is Node: it never fails.
func (m *Memory) Locate(context.Context, string) (Node, error) { return memoryNode, nil }

// Run executes the calls in order, each in one atomic step. It never blocks, so timeout has no use here; a ctx that is
// done already fails every call, and so does Fail or Close.
func (m *Memory) Run(ctx context.Context, _ time.Duration, calls []lua.Call, results []Result) {
	for i := range calls {
		results[i] = Result{}
		r := &results[i]
		if r.Err = ctx.Err(); r.Err == nil {
			r.Err = m.run(&calls[i], &r.Reply)
		}
	}
}

// run executes one call under the lock.
func (m *Memory) run(c *lua.Call, r *lua.Reply) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.down(); err != nil {
		return err
	}
	if n := c.Broken(); n > 0 {
		return argumentError(n)
	}
	clock := m.now()
	m.collect(clock)
	b := m.buckets[c.Bucket]
	if b != nil && b.expired(clock) {
		m.drop(b)
		b = nil
	}
	server := c.Now
	if server == 0 {
		server = clock
	}
	if early, is := tooLate(c, server); is {
		*r = early
		return nil
	}
	exists := b != nil
	if !exists {
		b = &memoryKey{name: c.Bucket, algorithm: c.Algorithm, state: fresh[c.Algorithm](), place: len(m.ring)}
	} else if c.Algorithm.Sorted() != b.algorithm.Sorted() {
		return &ScriptError{Text: "WRONGTYPE Operation against a key holding the wrong kind of value"}
	} else if c.Algorithm != b.algorithm {
		return &ScriptError{Text: "RLFOREIGN key"}
	}
	m.step = memoryStep{Call: c, server: server, exists: exists, reply: r, ended: m.step.ended[:0]}
	keep, written := b.state.run(&m.step)
	if !written {
		return nil
	}
	if !exists {
		m.buckets[b.name] = b
		m.ring = append(m.ring, b)
	}
	// PEXPIRE: Redis adds to its own clock, whatever time the call was told.
	b.expires = clock/1000 + keep
	return nil
}

// Presence says that process id is here and counts those that did within the last ttl; see [Store].
func (m *Memory) Presence(
	ctx context.Context, _ time.Duration, node Node, id string, ttl time.Duration,
) (Census, error) {
	if err := ctx.Err(); err != nil {
		return Census{}, err
	}
	if node != memoryNode {
		return Census{}, fmt.Errorf("remote: a Memory has no node %q", node)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.down(); err != nil {
		return Census{}, err
	}
	clock := m.now()
	return m.presence.run(clock, clock, id, ttl.Microseconds())
}

// Fail makes every call from now on fail with err, as an outage would, until Fail(nil) ends it. Nothing is executed
// meanwhile and nothing is forgotten. Use it to see what your service does without its limiter's Redis: an error of the
// network (io.EOF, syscall.ECONNREFUSED, context.DeadlineExceeded) is an outage, a *[ScriptError] is not.
func (m *Memory) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failure = err
}

// Close forgets all buckets. Later calls fail with [ErrClosed], whatever was said to Fail; closing twice is fine.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.buckets, m.ring, m.presence = nil, nil, memoryPresence{}
	return nil
}

func (m *Memory) check() error {
	if m == nil || m.base.IsZero() {
		return errors.New("remote: the *Memory is nil or empty: use remote.NewMemory")
	}
	return nil
}

// down reports why no call is executed, or nil.
func (m *Memory) down() error {
	if m.closed {
		return ErrClosed
	}
	return m.failure
}

// now reads the store's clock, µs since 1970. The lock is held.
func (m *Memory) now() int64 { return m.wall + time.Since(m.base).Microseconds() }

// collect looks at the next buckets in the ring and drops those whose time is over.
func (m *Memory) collect(clock int64) {
	for range collected {
		if m.hand >= len(m.ring) {
			m.hand = 0
		}
		if m.hand == len(m.ring) { // empty
			return
		}
		if b := m.ring[m.hand]; b.expired(clock) {
			m.drop(b) // another bucket takes its place and is looked at next
		} else {
			m.hand++
		}
	}
}

// drop takes a bucket out of the map and the ring.
func (m *Memory) drop(b *memoryKey) {
	last := len(m.ring) - 1
	m.ring[last].place = b.place
	m.ring[b.place] = m.ring[last]
	m.ring[last] = nil
	m.ring = m.ring[:last]
	delete(m.buckets, b.name)
}
