package engine

import (
	"cmp"
	"slices"
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
	if p == nil {
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
	l, limit := b.Limiter(), carried.Limit
	for {
		s, has := l.settings.Load(), b.Policy()
		o := has.Owner.(*Resolved)
		if has.Rule == limit.Rule() {
			// A key that became Unlimited or Blocked keeps the numbers of its last limit.
			if has.Rule != local.ByLimit || o.Settings == s && o.mixed == nil && o.Limit == limit {
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
	o := has.Owner.(*Resolved)
	m, hold := o.mixed, int64(lua.TermsHold)
	var until keptUntil
	if m != nil {
		m.load(&until)
	} else if at, asked := b.LastUse(now); asked {
		for i := range o.Limits {
			until[i].burst, until[i].rate = int64(at)+hold, int64(at)+hold
		}
	}
	used, less := int64(now)+hold, false
	var others []Limit // those that govern, unless they are the key's
	for i, was := range o.Limits {
		u := &until[i]
		limit, keepsBurst, keepsRate := was.beside(carried.Limits[i], s.Windows, int64(now) < u.burst, int64(now) < u.rate)
		if !keepsBurst {
			u.burst = used
		}
		if !keepsRate {
			u.rate = used
		}
		less = less || keepsBurst || keepsRate
		if limit != was {
			if others == nil {
				others = slices.Clone(o.Limits)
			}
			others[i] = limit
		}
	}
	governs := o.Limit
	switch {
	case others != nil:
		governs = others[0].And(others[1:]...)
	case m == nil && !less:
		return nil, true
	case m != nil && (less || int64(now) < m.otherAt.Load()+hold):
		m.note(&until, int64(now), less)
		return nil, true
	}
	if !less {
		return s.PolicyOf(governs), false
	}
	next = s.Resolve(governs, s.sharesOf(governs))
	m = &mixed{kept: make([]kept, len(o.Limits))}
	m.note(&until, int64(now), true)
	next.Owner.(*Resolved).mixed = m
	return next, false
}

// keptUntil has the times of a key's limits, as mixed has them.
type keptUntil [lua.MostLimits]struct{ burst, rate int64 }

// load reads the times.
func (m *mixed) load(until *keptUntil) {
	for i := range m.kept {
		until[i].burst, until[i].rate = m.kept[i].burst.Load(), m.kept[i].rate.Load()
	}
}

// note stores until when bursts and rates are kept, and whether a request carried less. It writes a
// time at most once a second, because many requests read it.
func (m *mixed) note(until *keptUntil, now int64, less bool) {
	later := func(a *atomic.Int64, x int64) {
		if x > a.Load()+int64(time.Second) {
			a.Store(x)
		}
	}
	for i := range m.kept {
		later(&m.kept[i].burst, until[i].burst)
		later(&m.kept[i].rate, until[i].rate)
	}
	if less {
		later(&m.otherAt, now)
	}
}

// beside returns the limit of a key that had the limit was, after a request that carries limit: the
// larger burst and the larger rate, as long as was may be kept. It also returns which of the two
// are kept because limit has less. Of windows, one is kept as a whole. Of several limits of a key
// it is about each by itself.
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
// Of several limits the first that differs decides.
// Two uses of one key are one use, so one of their limits decides.
func larger(a, b *Resolved) *Resolved {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	if a.Limit == Blocked || b.Limit == Unlimited {
		return b
	}
	for i, x := range a.Limits[:min(len(a.Limits), len(b.Limits))] {
		y := b.Limits[i]
		if c := cmp.Or(cmp.Compare(x.Most(), y.Most()), cmp.Compare(y.NanosPerToken(), x.NanosPerToken())); c != 0 {
			if c < 0 {
				return b
			}
			return a
		}
	}
	return a
}
