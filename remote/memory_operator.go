package remote

import "time"

// This file has what an operator of Redis does on the command line: look into a bucket, delete one, set the clock.
// Bucket names are those of [Memory.Key]. The table of standing shares is one more name: "{~0}st1".

// Fields returns what HGETALL would return of a bucket's hash or of the table of standing shares, or ZRANGE of a bucket's
// sorted set (members and scores). It returns nil if there is none. The scripts of package lua say what each field means.
func (m *Memory) Fields(name string) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if name == (naming{}).table() {
		return m.table.fields(m.now())
	}
	b := m.buckets[name]
	if b == nil || b.expired(m.now()) {
		return nil
	}
	return b.state.fields()
}

// Values returns what HMGET would return of a bucket's fields, "" for each that is not set, and nil if there is no
// bucket. The simulator reads buckets with it at every call. Fields writes out every lease: with it, a simulated
// minute of 50 processes takes 1.0 s of processor time instead of 0.7 s.
func (m *Memory) Values(bucket string, fields ...string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.buckets[bucket]
	if b == nil || b.expired(m.now()) {
		return nil
	}
	values := make([]string, len(fields))
	if t, ok := b.state.(*memoryBucket); ok { // without the leases that nobody asks for
		for i, f := range fields {
			values[i] = t.value(f)
		}
		return values
	}
	all := b.state.fields()
	for i, f := range fields {
		values[i] = all[f]
	}
	return values
}

// PTTL returns the ms that a bucket has left, or -2 if there is none, as Redis does.
func (m *Memory) PTTL(bucket string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, clock := m.buckets[bucket], m.now()
	if b == nil || b.expired(clock) {
		return -2
	}
	return b.expires - clock/1000
}

// Del deletes a bucket or the table of standing shares, as DEL, an eviction, or a failover that loses it would. The next
// call finds a full bucket, or a new table.
func (m *Memory) Del(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if name == (naming{}).table() {
		m.table = memoryTable{}
	}
	if b := m.buckets[name]; b != nil {
		m.drop(b)
	}
}

// Buckets lists the buckets, as SCAN does. The order is arbitrary, but the same after the same calls.
func (m *Memory) Buckets() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	clock, all := m.now(), make([]string, 0, len(m.ring))
	for _, b := range m.ring {
		if !b.expired(clock) {
			all = append(all, b.name)
		}
	}
	return all
}

// Step sets the store's clock ahead, or back if by is negative, as NTP, an operator, or a failover to another host
// may. Fractions of a microsecond are dropped. As on Redis, a step ahead removes what expires by then.
func (m *Memory) Step(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wall += by.Microseconds()
}

// Clone returns a copy of the store as it is now, presence and the table of standing shares included, like a replica that has caught up. Later calls
// to one are not seen by the other.
func (m *Memory) Clone() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &Memory{
		base: m.base, wall: m.wall, closed: m.closed, failure: m.failure, hand: m.hand,
		buckets: make(map[string]*memoryKey, len(m.buckets)), ring: make([]*memoryKey, len(m.ring)),
		presence: m.presence.clone(), table: m.table.clone(),
	}
	for i, b := range m.ring {
		twin := *b
		twin.state = b.state.clone()
		c.ring[i] = &twin
		c.buckets[twin.name] = &twin
	}
	return c
}
