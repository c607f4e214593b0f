package tiered

import (
	"errors"
	"log/slog"
	"sync"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// lookUps are the calls of PerKey that are under way: one for each key.
type lookUps struct {
	mu   sync.Mutex
	keys map[string]*lookUp
}

type lookUp struct {
	done  chan struct{}
	stale bool // Refresh was called meanwhile
}

// begin returns the look-up of a key that is under way, or a new one, which is the caller's to make.
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

// again reports whether a look-up is to be made again, because Refresh was called meanwhile; else it is over.
func (s *lookUps) again(key string, u *lookUp) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.stale {
		u.stale = false
		return true
	}
	s.over(key, u)
	return false
}

// over lets those go on who wait for a look-up.
func (s *lookUps) over(key string, u *lookUp) {
	if s.keys[key] == u {
		delete(s.keys, key)
		close(u.done)
	}
}

// abandon ends a look-up without an answer.
func (s *lookUps) abandon(key string, u *lookUp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over(key, u)
}

func (s *lookUps) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.keys[key]; u != nil {
		u.stale = true
	}
}

// resolve finds out the limit of a bucket's key, unless it is known. Whoever comes while PerKey is under way waits for it.
func (l *Limiter) resolve(b *bucket, key string) {
	for b.Policy().Rule == local.Unresolved {
		u, mine := l.whole.lookUps.begin(b.key())
		if !mine {
			<-u.done
			continue
		}
		l.lookUp(b, key, u)
	}
}

// lookUp asks PerKey, again if the policy changes or somebody calls Refresh meanwhile.
func (l *Limiter) lookUp(b *bucket, key string, u *lookUp) {
	defer l.whole.lookUps.abandon(b.key(), u) // PerKey may end the goroutine
	for {
		t := l.terms.Load()
		limit := t.policy.Limit
		if t.policy.PerKey != nil {
			limit = l.limitOf(t, key)
		}
		if b.change(l.group.now(), l.plan(t, limit)) {
			l.group.tell([]*bucket{b})
		}
		if t == l.terms.Load() && !l.whole.lookUps.again(b.key(), u) {
			return
		}
	}
}

// limitOf asks PerKey. What is not a limit, and what panics, is Policy.Limit.
func (l *Limiter) limitOf(t *terms, key string) (limit Limit) {
	defer func() {
		if v := recover(); v != nil {
			l.missed("panicked: " + quote(v))
			limit = t.policy.Limit
		}
	}()
	limit = t.policy.PerKey(key)
	if limit == (Limit{}) {
		return t.policy.Limit
	}
	if limit.rule() != local.ByLimit {
		return limit
	}
	p := t.policy
	p.Limit = limit
	if err := errors.Join(p.validate(), p.follows(t.policy)); err != nil {
		l.missed("returned a limit that the policy cannot have: " + err.Error())
		return t.policy.Limit
	}
	return limit
}

// missed counts an answer of PerKey that is none, and logs the first.
func (l *Limiter) missed(why string) {
	if l.whole.misses.Add(1) == 1 {
		l.group.journal.line(slog.LevelError, "PerKey gave no limit for a key: the policy's own decides", "policy", l.name, "why", why)
	}
}
