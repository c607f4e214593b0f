package remote

// What follows lets the tests of the script do to a Memory what no operator would do to Redis.

// HDel is HDEL of a lease's record.
func (m *Memory) HDel(bucket, field string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.buckets[bucket]; b != nil && field[0] == 'p' {
		delete(b.state.(*memoryBucket).leases, field[1:])
	}
}

// Len reports how many buckets are in memory, ended ones included.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ring) != len(m.buckets) {
		panic("ring and map differ")
	}
	for i, b := range m.ring {
		if b.index != i || m.buckets[b.name] != b {
			panic("a bucket is out of its place")
		}
	}
	return len(m.ring)
}

// PresenceAt is Presence at an injected time, µs.
func (m *Memory) PresenceAt(now int64, p Process) (Census, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	clock := m.now()
	if now == 0 {
		now = clock
	}
	return m.presence.run(clock, now, p)
}
