package tiered

import (
	"errors"
	"log/slog"
	"sync"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// lookUps are the running calls of PerKey, one per key.
type lookUps struct {
	mu   sync.Mutex
	keys map[string]*lookUp
}

type lookUp struct {
	done  chan struct{}
	stale bool // Refresh was called meanwhile
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

// again reports whether a look-up must be repeated because Refresh was called meanwhile. Otherwise it ends the
// look-up.
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

// resolve determines the limit of a bucket's key, unless it is known. Concurrent callers wait for one call of
// PerKey.
func (l *Limiter) resolve(b *bucket, key string) {
	for b.Policy().Rule == local.Unresolved {
		u, mine := l.lookUps.begin(b.key())
		if !mine {
			<-u.done
			continue
		}
		l.lookUp(b, key, u)
	}
}

// lookUp calls PerKey, and again if the policy changes or Refresh is called meanwhile.
func (l *Limiter) lookUp(b *bucket, key string, u *lookUp) {
	defer l.lookUps.abandon(b.key(), u) // PerKey may end the goroutine
	for {
		s := l.settings.Load()
		limit := s.policy.Limit
		if s.policy.PerKey != nil {
			limit = l.limitOf(s, key)
		}
		b.setLimit(s, limit)
		if s == l.settings.Load() && !l.lookUps.again(b.key(), u) {
			return
		}
	}
}

// setLimit makes limit the limit of b's key, under the settings s.
func (b *bucket) setLimit(s *settings, limit Limit) {
	l := b.limiter()
	g, p := l.group, l.policyOf(s, limit)
	if shares := sharesOf(p); shares != nil && p.Owner != b.Policy().Owner {
		g.shares.Empty(g.now(), g.cache.Hash(b.ID()), shares)
	}
	b.setPolicy(g.now(), p)
}

// limitOf calls PerKey. It returns Policy.Limit if the result is invalid, or if PerKey panics.
func (l *Limiter) limitOf(s *settings, key string) (limit Limit) {
	defer func() {
		if v := recover(); v != nil {
			l.perKeyFault("panicked: " + report.PanicOf(v))
			limit = s.policy.Limit
		}
	}()
	limit = s.policy.PerKey(key)
	if limit == (Limit{}) {
		return s.policy.Limit
	}
	if err := s.policy.CheckKeyLimit(limit); err != nil {
		l.perKeyFault("returned a limit that the policy cannot have: " + err.Error())
		return s.policy.Limit
	}
	return limit
}

// CheckKeyLimit returns why PerKey of a valid policy may not return the limit for a key, or nil.
func (p Policy) CheckKeyLimit(limit Limit) error {
	if limit.rule() != local.ByLimit {
		return nil
	}
	q := p
	q.Plans = nil                                                  // they do not matter to this limit
	q.Limit, q.PerKey = limit, func(string) Limit { return limit } // a larger Lease.Size is reduced
	if q.MaxDebt > 0 {                                             // a larger burst is the key's MaxDebt
		q.MaxDebt = min(max(q.MaxDebt, limit.burst()), maxTokens)
	}
	err := q.checkReplaces(p)
	if _, _, ok := q.split(); !ok { // Redis has the whole limit of this key
		q.Standing = StandingOff
	}
	return errors.Join(q.Validate(), err)
}

// perKeyFault counts a failure of PerKey, and logs the first one.
func (l *Limiter) perKeyFault(why string) {
	if l.perKeyFaults.Add(1) == 1 {
		l.group.journal.Line(slog.LevelError, "PerKey gave no limit for a key: the policy's own decides", "policy",
			l.name, "why", why)
	}
}
