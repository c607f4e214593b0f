package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Memory is the shared tier inside one process. It has the same buckets, replies and refusals as the scripts on
// [Redis], bit for bit. Use it for development and for services that run as a single process. In a test it stands
// in for Redis, outages included ([Memory.Fail]). Its contents end with the process, and no other process sees
// them.
//
// Each call is atomic, as on Redis. A mutex is held for less than a microsecond per call, or longer if a call
// sweeps many leases. Nothing blocks, and no goroutine or timer is started. Each call looks at two buckets and
// removes those whose time to live is over. Memory is therefore bounded by the buckets that are alive and those
// that ended during the last round of this collection.
//
// Its clock is the wall clock at its creation plus the monotonic time since. It steps only by [Memory.Step]. In a
// testing/synctest bubble it is the bubble's clock.
//
// Use [NewMemory]; [Check] refuses the zero value.
type Memory struct {
	base time.Time // when wall was read; only its monotonic part is used

	mu       sync.Mutex
	wall     int64 // µs since 1970 at base, plus what Step added
	closed   bool
	failure  error
	buckets  map[string]*memoryKey
	ring     []*memoryKey // the same buckets in no order, for the collection
	hand     int          // index in ring of the next bucket to look at
	presence memoryPresence
	table    memoryTable
	step     memoryStep // the call that is running
}

// memoryNode is the only node of a Memory.
const memoryNode Node = "memory"

// collectPerCall is the number of buckets that each call looks at. One would be enough for calls that create a
// bucket each. With two, a round takes half as many calls as it took to create the buckets that it passes.
const collectPerCall = 2

// NewMemory returns an empty store.
func NewMemory() *Memory {
	now := time.Now()
	return &Memory{base: now, wall: now.UnixMicro(), buckets: make(map[string]*memoryKey)}
}

var _ Store = (*Memory)(nil)

// Key returns the name of a token bucket: the one that [Redis] would use with an empty prefix. Long keys are
// hashed.
func (m *Memory) Key(policy, key string) string { return m.Name(Kind{}, policy, key) }

// Name returns the name of a bucket of any kind.
func (m *Memory) Name(k Kind, policy, key string) string { return naming{}.bucket(k, policy, key) }

// Node returns the same node for every bucket.
func (m *Memory) Node(string) Node { return memoryNode }

// TableNode returns the only node.
func (m *Memory) TableNode() Node { return memoryNode }

// Nodes returns the only node.
func (m *Memory) Nodes() []Node { return []Node{memoryNode} }

// Locate is Node. It never fails.
func (m *Memory) Locate(context.Context, string) (Node, error) { return memoryNode, nil }

// Dial returns nil: there is nothing to dial.
func (m *Memory) Dial(context.Context, Node) error { return nil }

// Run executes the calls in order, each in one atomic step. It never blocks and ignores timeout. Every call fails
// if ctx is done, during [Memory.Fail], and after Close.
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
	if early, is := earlyReply(c, server); is {
		*r = early
		return nil
	}
	exists := b != nil
	if !exists {
		b = &memoryKey{name: c.Bucket, algorithm: c.Algorithm, state: fresh[c.Algorithm](), index: len(m.ring)}
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
	// Like PEXPIRE: Redis adds to its own clock, even if the call carries another time.
	b.expires = clock/1000 + keep
	return nil
}

// Presence records that a process is present, and counts those that are; see [Store].
func (m *Memory) Presence(ctx context.Context, _ time.Duration, node Node, p Process) (Census, error) {
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
	c, err := m.presence.run(clock, clock, p)
	if p.Poll.Seq > 0 {
		c.Poll.Sent = true
		c.Poll.Reply, c.Poll.Err = m.table.run(clock, &p.Poll)
	}
	return c, err
}

// Fail makes every call from now on fail with err, as in an outage. Fail(nil) ends it. Meanwhile nothing is
// executed and nothing is lost. Use it to see what your service does without its limiter's Redis. A network error
// (io.EOF, syscall.ECONNREFUSED, context.DeadlineExceeded) is an outage; a *[ScriptError] is not.
func (m *Memory) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failure = err
}

// Close removes all that is stored. Later calls fail with [ErrClosed], even during Fail. Closing twice is fine.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.buckets, m.ring, m.presence, m.table = nil, nil, memoryPresence{}, memoryTable{}
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

// now returns the store's clock in µs since 1970. The lock is held.
func (m *Memory) now() int64 { return m.wall + time.Since(m.base).Microseconds() }

// collect looks at the next buckets in the ring and removes those whose time to live is over.
func (m *Memory) collect(clock int64) {
	for range collectPerCall {
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

// drop removes a bucket from the map and the ring.
func (m *Memory) drop(b *memoryKey) {
	last := len(m.ring) - 1
	m.ring[last].index = b.index
	m.ring[b.index] = m.ring[last]
	m.ring[last] = nil
	m.ring = m.ring[:last]
	delete(m.buckets, b.name)
}
