package remote

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/model"
)

// This file has what an operator of Redis does on the command line: look into a bucket, delete one,
// set the clock. Bucket names are those of [Memory.Key]. The table of standing shares is one more
// name: "{~0}st1".

// Fields returns what HGETALL would return of a bucket's hash or of the table of standing shares,
// or ZRANGE of a bucket's sorted set (members and scores). It returns nil if there is none. The
// scripts of package lua say what each field means.
func (m *Memory) Fields(name string) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if name == (naming{}).table() {
		return m.table.Fields(m.now())
	}
	if fields := m.places.Fields(m.now(), name); fields != nil {
		return fields
	}
	return m.buckets.Fields(m.now(), name)
}

// PTTL returns the ms that a bucket or the table of standing shares has left, or -2 if there is
// none, as Redis does.
func (m *Memory) PTTL(name string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if name == (naming{}).table() {
		return m.table.PTTL(m.now())
	}
	return m.buckets.PTTL(m.now(), name)
}

// Del deletes a bucket or the table of standing shares, as DEL, an eviction, or a failover that
// loses it would. The next call finds a full bucket, or a new table.
func (m *Memory) Del(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if name == (naming{}).table() {
		m.table = model.Table{}
	}
	m.places.Lose(name)
	m.buckets.Del(name)
}

// Buckets lists the buckets, as SCAN does. The order is arbitrary, but the same after the same
// calls.
func (m *Memory) Buckets() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.buckets.Names(m.now())
}

// Step sets the store's clock ahead, or back if by is negative, as NTP, an operator, or a failover
// to another host may. Fractions of a microsecond are dropped. As on Redis, a step ahead removes
// what expires by then.
func (m *Memory) Step(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wall += by.Microseconds()
}

// Clone returns a copy of the store as it is now, presence and the table of standing shares
// included, like a replica that has caught up. Later calls to one are not seen by the other.
func (m *Memory) Clone() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &Memory{
		base: m.base, wall: m.wall, closed: m.closed, failure: m.failure,
		buckets: m.buckets.Clone(), presence: m.presence.Clone(), table: m.table.Clone(),
	}
}
