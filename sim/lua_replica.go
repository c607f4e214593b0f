package sim

import (
	"slices"
	"time"
)

// snapshot is all that a Redis held when its replica stopped following.
type snapshot struct {
	keys []record
}

// record is one key: a bucket, or the presence set.
type record struct {
	name   string
	fields []string // of a hash, each followed by its value
	scores map[string]float64
	left   time.Duration // to live, as of at; 0: the key does not end
	at     time.Time
}

func (m *luaEngine) remember() {
	s := &snapshot{}
	for _, k := range m.redis.Keys() {
		r := record{name: k, left: m.redis.TTL(k), at: time.Now()}
		switch m.redis.Type(k) {
		case "hash":
			names, _ := m.redis.HKeys(k)
			for _, f := range names {
				r.fields = append(r.fields, f, m.redis.HGet(k, f))
			}
		case "zset":
			r.scores, _ = m.redis.SortedSet(k)
		}
		s.keys = append(s.keys, r)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.replica = s
}

func (m *luaEngine) promote() {
	m.mu.Lock()
	s := m.replica
	m.replica = nil
	m.mu.Unlock()
	m.flush()
	m.flushScripts()
	if s == nil {
		return
	}
	for _, r := range s.keys {
		left := r.left - time.Since(r.at)
		if r.left > 0 && left <= 0 {
			continue
		}
		if len(r.fields) > 0 {
			m.redis.HSet(r.name, r.fields...)
		}
		members := make([]string, 0, len(r.scores))
		for member := range r.scores {
			members = append(members, member)
		}
		slices.Sort(members)
		for _, member := range members {
			_, _ = m.redis.ZAdd(r.name, r.scores[member], member) // it is no other type: all was flushed
		}
		if r.left > 0 {
			m.redis.SetTTL(r.name, left)
		}
	}
}
