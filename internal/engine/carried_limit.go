package engine

import (
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Carry resolves a limit that a request carries. An error says why the policy cannot have it.
func (l *Limiter) Carry(s *Settings, limit Limit) (*Resolved, error) {
	s.mu.Lock()
	p := s.kept(limit)
	s.mu.Unlock()
	if p == nil || s.FixedLimit {
		if err := s.CheckKey(limit); err != nil {
			return nil, err
		}
		p = s.PolicyOf(limit)
	}
	if l.mode.Load()&modeCarried == 0 {
		l.carries.Store(true)
		l.mode.Or(modeCarried)
	}
	return Owner(p), nil
}

// Carries reports whether a request has carried a limit.
func (l *Limiter) Carries() bool { return l.carries.Load() }

// own is the limit of a request that carries none, once others have carried one: the key's own
// limit, as if the request carried that. PerKey is asked each time, because the key may have
// another limit by now.
func (l *Limiter) own(key string) *Resolved {
	s := l.settings.Load()
	p := s.Initial
	if s.KeyLimit != nil {
		p = s.PolicyOf(s.KeyLimit(key))
	}
	return Owner(p)
}

// limitOf is the limit that decides a request: the one that it carries or, if that is nil, the
// key's own. It is nil if no request has carried one: then the key has no other.
func (l *Limiter) limitOf(key string, carried *Resolved) *Resolved {
	if carried == nil && l.carries.Load() {
		return l.own(key)
	}
	return carried
}

// give makes sure that b's key has at least the limit that a request carries, which may be nil.
func (b *Bucket) give(now time.Duration, key string, carried *Resolved) {
	l := b.Limiter()
	if limit := l.limitOf(key, carried); limit != nil {
		b.adopt(now, limit)
	} else {
		l.resolve(b, key)
	}
}

// adopt makes limit, which a request carries, the limit of b's key. While requests carry different
// limits, the key keeps the larger burst and the larger rate, each by itself.
func (b *Bucket) adopt(now time.Duration, carried *Resolved) {
	l, limit := b.Limiter(), carried.Limits[0]
	for {
		s, has := l.settings.Load(), b.Policy()
		o := has.Owner.(*Resolved)
		if has.Rule == limit.Rule() {
			// A key that became Unlimited or Blocked keeps the numbers of its last limit.
			if has.Rule != local.ByLimit || o.Settings == s && o.mixed == nil && o.Limits[0] == limit {
				return
			}
		}
		if has.Rule != local.ByLimit || limit.Rule() != local.ByLimit || o.Settings != s {
			b.setLimit(s, limit)
		} else if next, done := b.mix(now, s, has, carried); !done && !b.replacePolicy(now, has, next) {
			continue
		}
		if s == l.settings.Load() { // else SetPolicy may have come before this
			return
		}
	}
}

// mix returns the next policy of b's key, which has the policy has, after a request that carries a
// limit, under the settings s. It reports done if the policy stays.
func (b *Bucket) mix(now time.Duration, s *Settings, has *local.Policy, carried *Resolved) (next *local.Policy, done bool) {
	o, limit := has.Owner.(*Resolved), carried.Limits[0]
	m, hold := o.mixed, int64(lua.TermsHold)
	var burstUntil, rateUntil int64
	if m != nil {
		burstUntil, rateUntil = m.burstUntil.Load(), m.rateUntil.Load()
	} else if at, asked := b.LastUse(now); asked {
		burstUntil, rateUntil = int64(at)+hold, int64(at)+hold
	}
	governs, keepsBurst, keepsRate := o.Limits[0].beside(limit, s.Windows, int64(now) < burstUntil, int64(now) < rateUntil)
	used := int64(now) + hold
	if !keepsBurst {
		burstUntil = used
	}
	if !keepsRate {
		rateUntil = used
	}
	less := keepsBurst || keepsRate
	if governs == o.Limits[0] {
		if m == nil && !less {
			return nil, true
		}
		if m != nil && (less || int64(now) < m.otherAt.Load()+hold) {
			m.note(burstUntil, rateUntil, int64(now), less)
			return nil, true
		}
	}
	if !less {
		return s.PolicyOf(governs), false
	}
	next = s.Resolve(governs, s.sharesOf(governs))
	next.Owner.(*Resolved).mixed = new(mixed)
	next.Owner.(*Resolved).mixed.note(burstUntil, rateUntil, int64(now), true)
	return next, false
}

// note stores until when burst and rate are kept, and whether a request carried less. It writes a
// time at most once a second, because many requests read it.
func (m *mixed) note(burstUntil, rateUntil, now int64, less bool) {
	later := func(a *atomic.Int64, x int64) {
		if x > a.Load()+int64(time.Second) {
			a.Store(x)
		}
	}
	later(&m.burstUntil, burstUntil)
	later(&m.rateUntil, rateUntil)
	if less {
		later(&m.otherAt, now)
	}
}

// beside returns the limit of a key that had the limit was, after a request that carries limit: the
// larger burst and the larger rate, as long as was may be kept. It also returns which of the two
// are kept because limit has less. Of windows, one is kept as a whole.
func (was Limit) beside(limit Limit, windows, burst, rate bool) (governs Limit, keepsBurst, keepsRate bool) {
	slower := limit.NanosPerToken() - was.NanosPerToken()
	if windows {
		switch {
		case limit.Per == was.Per && limit.Calendar == was.Calendar && limit.Precision == was.Precision && limit.Tokens == was.Tokens:
			return was, false, false
		case burst && (limit.Most() < was.Most() || limit.Most() == was.Most() && slower > 0):
			return was, true, true
		}
		return limit, false, false
	}
	keepsBurst, keepsRate = burst && limit.Most() < was.Most(), rate && slower > 0
	governs = limit
	if keepsBurst || limit.Most() == was.Most() {
		governs.Burst = was.Most()
	}
	if keepsRate || slower == 0 {
		governs.Burst = governs.Most()
		governs.Tokens, governs.Per = was.Tokens, was.Per
	}
	if governs.Most() == was.Most() && governs.Tokens == was.Tokens && governs.Per == was.Per {
		governs = was // not the same in other words
	}
	return governs, keepsBurst, keepsRate
}

// replacePolicy makes p the policy of b if it still has the policy old. It reports false if not.
func (b *Bucket) replacePolicy(now time.Duration, old, p *local.Policy) bool {
	folded, effect, ok := b.SetPolicy(now, old, p)
	if ok {
		b.policySet(now, folded, effect)
	}
	return ok
}

// larger returns the limit with the larger burst, and of equal bursts the one with the higher rate.
// Two uses of one key are one use, so one of their limits decides.
func larger(a, b *Resolved) *Resolved {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	x, y := a.Limits[0], b.Limits[0]
	if x == Blocked || y == Unlimited || x.Most() < y.Most() ||
		x.Most() == y.Most() && x.NanosPerToken() > y.NanosPerToken() {
		return b
	}
	return a
}
