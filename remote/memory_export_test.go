package remote

import (
	"fmt"
	"strconv"
)

// What follows lets the tests of the script look into a Memory as they look into Redis.

// Fields reports a bucket as HGETALL would, nil when there is none.
func (m *Memory) Fields(bucket string) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.buckets[bucket]
	if b == nil || b.expired(m.now()) {
		return nil
	}
	double := func(x float64) string { return strconv.FormatFloat(x, 'g', 17, 64) } // %.17g
	whole := func(x int64) string { return strconv.FormatInt(x, 10) }
	f := map[string]string{
		"v": "tb1", "l": double(b.level), "s": double(b.overflow),
		"t": whole(b.last), "c": whole(b.born), "z": whole(b.behind),
	}
	if b.lends {
		f["o"], f["w"], f["a"] = whole(b.escrow), whole(b.wants), whole(b.active)
		f["g"], f["e"] = whole(b.sweep), whole(b.latest)
	}
	for id, l := range b.leases {
		f["p"+id] = fmt.Sprintf("%d|%d|%d|%d|%d|%d", l.seq, l.grant, l.out, l.want, l.end, l.debt)
	}
	return f
}

// PTTL reports the ms a bucket has left, -2 when there is none.
func (m *Memory) PTTL(bucket string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, clock := m.buckets[bucket], m.now()
	if b == nil || b.expired(clock) {
		return -2
	}
	return b.expires - clock/1000
}

// Del is DEL.
func (m *Memory) Del(bucket string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.buckets[bucket]; b != nil {
		m.drop(b)
	}
}

// HDel is HDEL of a lease's record.
func (m *Memory) HDel(bucket, field string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.buckets[bucket]; b != nil && field[0] == 'p' {
		delete(b.leases, field[1:])
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
		if b.place != i || m.buckets[b.name] != b {
			panic("a bucket is out of its place")
		}
	}
	return len(m.ring)
}

// PresenceAt is Presence at an injected time, µs.
func (m *Memory) PresenceAt(now int64, id string, ttl int64) (Census, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	clock := m.now()
	if now == 0 {
		now = clock
	}
	return m.presence.run(clock, now, id, ttl)
}
