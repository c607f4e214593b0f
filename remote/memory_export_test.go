package remote

import "github.com/tiered-limiter/tiered-limiter/lua"

// What follows lets the tests of the script do to a Memory what no operator would do to Redis.

// HDel is HDEL of a lease's record.
func (m *Memory) HDel(bucket, field string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.buckets.HDel(bucket, field)
}

// PresenceAt is Presence at an injected time, µs.
func (m *Memory) PresenceAt(now int64, p Process) (Census, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.present(m.now(), now, p)
}

// PollAt executes a poll of the table of standing shares, with an injected time.
func (m *Memory) PollAt(p lua.Poll) (lua.PollReply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.poll(m.now(), &p)
}

// Table returns what HGETALL would return of the table, and nil if there is none.
func (m *Memory) Table() map[string]string { return m.Fields(naming{}.table()) }

// TablePTTL returns the ms that the table has left.
func (m *Memory) TablePTTL() int64 { return m.PTTL(naming{}.table()) }

// SetTable makes the table that of another Memory, as a failover to a replica that is behind would.
func (m *Memory) SetTable(of *Memory) {
	c := of.Clone()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.table = c.table
}
