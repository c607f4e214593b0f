package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/model"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Memory is the shared tier inside one process. It has the same buckets, replies and refusals as
// the scripts on [Redis], bit for bit. Use it for development and for services that run as a single
// process. In a test it stands in for Redis, outages included ([Memory.Fail]). Its contents end
// with the process, and no other process sees them.
//
// Each call is atomic, as on Redis. A mutex is held for less than a microsecond per call, or longer
// if a call sweeps many leases. Nothing blocks, and no goroutine or timer is started. Each call
// looks at two buckets and removes those whose time to live is over. Memory is therefore bounded by
// the buckets that are alive and those that ended during the last round of this collection.
//
// Its clock is the wall clock at its creation plus the monotonic time since. It steps only by
// [Memory.Step]. In a testing/synctest bubble it is the bubble's clock.
//
// Use [NewMemory]; [Check] refuses the zero value.
type Memory struct {
	base time.Time // when wall was read; only its monotonic part is used

	mu       sync.Mutex
	wall     int64 // µs since 1970 at base, plus what Step added
	closed   bool
	failure  error
	buckets  model.Keys
	presence model.Presence
	table    model.Table
	places   model.Places
}

// memoryNode is the only node of a Memory.
const memoryNode Node = "memory"

// NewMemory returns an empty store.
func NewMemory() *Memory {
	now := time.Now()
	return &Memory{base: now, wall: now.UnixMicro()}
}

var _ Store = (*Memory)(nil)

// Key returns the name of a token bucket: the one that [Redis] would use with an empty prefix. Long
// keys are hashed.
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

// Server returns "memory".
func (m *Memory) Server(context.Context, time.Duration, Node) (string, error) { return "memory", nil }

// Inspect returns nil: there are no rights.
func (m *Memory) Inspect(context.Context, time.Duration, Node, []lua.Algorithm) error { return nil }

// Run executes the calls in order, each in one atomic step. It never blocks and ignores timeout.
// Every call fails if ctx is done, during [Memory.Fail], and after Close.
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
	return raised(m.buckets.Run(m.now(), c, r))
}

// raised returns an error of a script as a *[ScriptError].
func raised(err error) error {
	if err == nil {
		return nil
	}
	return &ScriptError{Text: err.Error()}
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
	c, err := m.present(clock, clock, p)
	if p.Poll.Seq > 0 {
		c.Poll.Sent = true
		c.Poll.Reply, c.Poll.Err = m.poll(clock, &p.Poll)
	}
	return c, err
}

// present executes a call of the presence script at the time now. The lock is held.
func (m *Memory) present(clock, now int64, p Process) (Census, error) {
	numbers, err := m.presence.Run(clock, now, p.ID, p.TTL.Microseconds(), string(p.Announced), p.keep())
	if err != nil {
		return Census{}, raised(err)
	}
	return censusOf(numbers, p.Announced.policies()), nil
}

// poll executes a poll of the table. The lock is held.
func (m *Memory) poll(clock int64, p *lua.Poll) (lua.PollReply, error) {
	r, err := m.table.Run(clock, p)
	return r, raised(err)
}

// Fail makes every call from now on fail with err, as in an outage. Fail(nil) ends it. Meanwhile
// nothing is executed and nothing is lost. Use it to see what your service does without its
// limiter's Redis. A network error (io.EOF, syscall.ECONNREFUSED, context.DeadlineExceeded) is an
// outage; a *[ScriptError] is not.
func (m *Memory) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failure = err
}

// Close removes all that is stored. Later calls fail with [ErrClosed], even during Fail. Closing
// twice is fine.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.buckets, m.presence, m.table = model.Keys{}, model.Presence{}, model.Table{}
	m.places = model.Places{}
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
