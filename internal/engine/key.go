package engine

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// From a key to its bucket, and to the limit that PerKey gives it. Some requests are not valid
// before that.

// ID returns the ID of a key's bucket in the cache.
func (l *Limiter) ID(key string) local.ID { return local.ID{Policy: l.Number, Key: remote.Digest(key)} }

// Valid returns Granted, or the reason why no limit would admit the request. It does not know the
// key's burst.
func Valid(key string, n int64) local.Reason {
	switch {
	case key == "" || len(key) > defaults.MaxKeyLength:
		return local.InvalidKey
	case n <= 0:
		return local.InvalidCost
	case n > MaxTokens:
		return local.ExceedsBurst
	}
	return local.Granted
}

// invalid returns the refusal of a request that is not valid, and the bucket of its key if there is
// one.
func (l *Limiter) invalid(key string, r local.Reason) (local.Outcome, *Bucket) {
	p := l.settings.Load().Initial
	if r != local.InvalidKey {
		if b, ok := l.Group.Cache.Find(l.ID(key)); ok && b.Policy().Rule != local.Unresolved {
			return b.refuseForGood(l.Group.Now(), r), b
		}
	}
	left := p.Cap // this process does not know the key: its bucket may be full
	if r == local.InvalidKey {
		left = 0
	}
	return local.Decided(p, r, local.Nowhere, left, 0), nil
}

// find returns the bucket of id. After Close it returns one that never asks Redis.
func (g *Group) find(now time.Duration, id local.ID) *Bucket {
	if b := g.Cache.Hot(now, id.Policy); b != nil && b.Hot().Is(id) {
		return b
	}
	return g.get(now, id)
}

// get is find if the bucket is not the one that is asked for most.
func (g *Group) get(now time.Duration, id local.ID) *Bucket {
	if g.Closed.Load() {
		return g.CacheAfterClose.Get(now, id)
	}
	return g.Cache.Get(now, id)
}

// begin returns the running look-up of a key, or a new one that the caller must make.
func (s *lookUps) begin(key string) (u *lookUp, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u = s.keys[key]; u != nil {
		return u, false
	}
	if s.keys == nil {
		s.keys = make(map[string]*lookUp)
	}
	u = &lookUp{done: make(chan struct{})}
	s.keys[key] = u
	return u, true
}

// again reports whether a look-up must be repeated because Refresh was called meanwhile. Otherwise
// it ends the look-up.
func (s *lookUps) again(key string, u *lookUp) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.stale {
		u.stale = false
		return true
	}
	s.finish(key, u)
	return false
}

// finish ends a look-up, and releases those that wait for it.
func (s *lookUps) finish(key string, u *lookUp) {
	if s.keys[key] == u {
		delete(s.keys, key)
		close(u.done)
	}
}

// abandon ends a look-up without a result.
func (s *lookUps) abandon(key string, u *lookUp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(key, u)
}

func (s *lookUps) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.keys[key]; u != nil {
		u.stale = true
	}
}

// resolve determines the limit of a bucket's key, unless it is known. Concurrent callers wait for
// one call of PerKey.
func (l *Limiter) resolve(b *Bucket, key string) {
	for b.Policy().Rule == local.Unresolved {
		u, mine := l.lookUps.begin(b.Key())
		if !mine {
			<-u.done
			continue
		}
		l.lookUp(b, key, u)
	}
}

// lookUp calls PerKey, and again if the policy changes or Refresh is called meanwhile.
func (l *Limiter) lookUp(b *Bucket, key string, u *lookUp) {
	defer l.lookUps.abandon(b.Key(), u) // PerKey may end the goroutine
	for {
		s := l.settings.Load()
		limit := s.Limit
		if s.KeyLimit != nil {
			limit = s.KeyLimit(key)
		}
		b.setLimit(s, limit)
		if s == l.settings.Load() && !l.lookUps.again(b.Key(), u) {
			return
		}
	}
}

// setLimit makes limit the limit of b's key, under the settings s.
func (b *Bucket) setLimit(s *Settings, limit Limit) {
	l := b.Limiter()
	b.setPolicy(l.Group.Now(), s.PolicyOf(limit))
}

// CountKeyFault counts that a key's own limit is invalid, or not known, and reports whether it is
// the first.
func (l *Limiter) CountKeyFault() (first bool) { return l.PerKeyFaults.Add(1) == 1 }

// Refresh makes the next use of key look its limit up again.
func (l *Limiter) Refresh(key string) {
	if l.settings.Load().KeyLimit == nil || key == "" || len(key) > defaults.MaxKeyLength {
		return
	}
	id, g := l.ID(key), l.Group
	l.refreshes.Add(1)
	l.lookUps.forget(id.Key)
	for _, c := range []*local.Cache[Bucket, *Bucket]{g.Cache, g.CacheAfterClose} {
		if b, ok := c.Find(id); ok {
			b.setPolicy(g.Now(), b.Policy().WithRule(local.Unresolved))
		}
	}
}
