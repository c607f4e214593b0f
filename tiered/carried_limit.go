package tiered

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// WithLimit returns u with a limit that the request carries: the limit of its key, instead of the policy's own or that
// of [Policy].PerKey. It is for services that learn the limit with the request, such as a plan in a token:
//
//	d := perUser.For(user).WithLimit(token.Limit).Allow(ctx)
//
// If the request has only the name of a plan, use [Use.WithPlan].
//
// The key keeps the limit, also for later requests that carry none, until a request carries another one, the policy
// changes, or the process removes the key. If requests for one key carry different limits, in one process or in several,
// the key can use the largest burst and the largest rate of them, each by itself, until no request has carried it for ten
// seconds. A request may cost no more than the burst that it carries, and its Decision has that Burst. If a request
// changes what its key can use, the key's tokens are treated as [Limiter.SetPolicy] says.
//
// The zero Limit means that the request carries none: its key keeps the limit that it has. [Unlimited] and [Blocked]
// are limits too. To take a limit back, carry Policy.Limit, or with PerKey call [Limiter.Refresh] in each process.
//
// With Also or Standing every carried limit is invalid, and [Policy.CheckCarriedLimit] says so. An invalid limit is
// ignored, because a request must not fail for it: it is counted in [PolicyStats].PerKeyFaults, and the first one is
// logged as an error that names field, value and rule.
func (u Use) WithLimit(limit Limit) Use {
	u.limit = nil
	if u.limiter != nil && limit != (Limit{}) {
		u.limit = u.limiter.carriedLimit(u.limiter.settings.Load(), limit)
	}
	return u
}

// carriedLimit resolves a limit that a request carries. It returns nil if the policy cannot have it.
func (l *Limiter) carriedLimit(s *settings, limit Limit) *resolvedLimit {
	s.mu.Lock()
	p := s.policies[limit]
	s.mu.Unlock()
	if p == nil || len(s.policy.Also) > 0 || s.policy.Standing != StandingOff {
		if err := s.policy.CheckCarriedLimit(limit); err != nil {
			if l.perKeyFaults.Add(1) == 1 {
				l.group.journal.Line(slog.LevelError, "a request carried a limit that the policy cannot have: it is ignored",
					"policy", l.name, "why", err.Error())
			}
			return nil
		}
		p = l.policyOf(s, limit)
	}
	if l.mode.Load()&modeCarried == 0 {
		l.carries.Store(true)
		l.mode.Or(modeCarried)
	}
	return p.Owner.(*resolvedLimit)
}

// CheckCarriedLimit returns why no request of a valid policy may carry the limit, or nil. [Unlimited] asks whether they
// may carry any.
func (p Policy) CheckCarriedLimit(limit Limit) error {
	if len(p.Also) > 0 {
		return fmt.Errorf("tiered: Policy.Also has %d limits: must be empty if requests carry limits", len(p.Also))
	}
	if p.Standing != StandingOff {
		return fmt.Errorf("tiered: Policy.Standing is %v: must be off if requests carry limits", p.Standing)
	}
	return p.CheckKeyLimit(limit)
}

// find returns a bucket of the part's key. If the request carries a limit, the key has at least that from now on.
func (p *part) find(id local.ID) *bucket {
	b := p.limiter.group.find(p.now, id)
	if p.limit != nil {
		b.adopt(p.now, p.limit)
	} else {
		b.adoptLast(p.now)
	}
	return b
}

// adoptLast lets a request that carries none go by the limit that one carried last. So a key whose requests carried different
// limits does not keep the larger one for longer than they do. A key that a request made Unlimited or Blocked stays so, though it
// remembers the limits of before.
func (b *bucket) adoptLast(now time.Duration) {
	p := b.Policy()
	if m := p.Owner.(*resolvedLimit).mixed; m != nil && p.Rule == local.ByLimit {
		b.adopt(now, m.last.Load())
	}
}

// adopt makes limit, which a request carries, the limit of b's key. While requests carry different limits, the key keeps
// the larger burst and the larger rate, each by itself.
func (b *bucket) adopt(now time.Duration, carried *resolvedLimit) {
	l, limit := b.limiter(), carried.limits[0]
	for {
		s, has := l.settings.Load(), b.Policy()
		o := has.Owner.(*resolvedLimit)
		if has.Rule == limit.rule() {
			// A key that became Unlimited or Blocked keeps the numbers of its last limit.
			if has.Rule != local.ByLimit || o.settings == s && o.mixed == nil && o.limits[0] == limit {
				return
			}
		}
		if has.Rule != local.ByLimit || limit.rule() != local.ByLimit || o.settings != s {
			b.setLimit(s, limit)
		} else if next, done := b.mix(now, s, has, carried); !done && !b.replacePolicy(now, has, next) {
			continue
		}
		if s == l.settings.Load() { // else SetPolicy may have come before this
			return
		}
	}
}

// carried reports whether requests carry the limit of b's key.
func (b *bucket) carried() bool {
	o := b.Policy().Owner.(*resolvedLimit)
	p := &o.settings.policy
	return p.PerKey == nil && len(p.Also) == 0 && p.Standing == StandingOff && (o.mixed != nil || o.limits[0] != p.Limit)
}

// mixed is what a key knows of the limits that its requests carry, if they differ. The times are since the Group's base.
type mixed struct {
	burstUntil, rateUntil atomic.Int64                  // until when the key keeps each of them, unless a request carries it again
	otherAt               atomic.Int64                  // when a request last carried less
	last                  atomic.Pointer[resolvedLimit] // what a request carried last
}

// mix returns the policy of b's key after a request that carries a limit, or that it is the policy has, of the settings s.
func (b *bucket) mix(now time.Duration, s *settings, has *local.Policy, carried *resolvedLimit) (next *local.Policy, done bool) {
	o, limit := has.Owner.(*resolvedLimit), carried.limits[0]
	m, hold := o.mixed, int64(lua.TermsHold)
	var burstUntil, rateUntil int64
	if m != nil {
		burstUntil, rateUntil = m.burstUntil.Load(), m.rateUntil.Load()
	} else if at, asked := b.LastUse(now); asked {
		burstUntil, rateUntil = int64(at)+hold, int64(at)+hold
	}
	governs, keepsBurst, keepsRate := o.limits[0].beside(limit, s.policy.Algorithm, int64(now) < burstUntil, int64(now) < rateUntil)
	used := int64(now) + hold
	if !keepsBurst {
		burstUntil = used
	}
	if !keepsRate {
		rateUntil = used
	}
	less := keepsBurst || keepsRate
	if governs == o.limits[0] {
		if m == nil && !less {
			return nil, true
		}
		if m != nil && (less || int64(now) < m.otherAt.Load()+hold) {
			m.note(burstUntil, rateUntil, int64(now), less, carried)
			return nil, true
		}
	}
	l := b.limiter()
	if !less {
		return l.policyOf(s, governs), false
	}
	next = l.local(s, governs)
	next.Owner.(*resolvedLimit).mixed = new(mixed)
	next.Owner.(*resolvedLimit).mixed.note(burstUntil, rateUntil, int64(now), true, carried)
	return next, false
}

// note notes until when burst and rate are kept, and whether a request carried less. It writes no time that it has noted
// a second ago: many requests read it.
func (m *mixed) note(burstUntil, rateUntil, now int64, less bool, carried *resolvedLimit) {
	if m.last.Load() != carried {
		m.last.Store(carried)
	}
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

// beside returns what a key has whose limit is was and of whose requests one carries limit: the larger burst and the
// larger rate, as long as was may be kept; and which of was are kept because limit has less. A window goes as a whole.
func (was Limit) beside(limit Limit, a Algorithm, burst, rate bool) (governs Limit, keepsBurst, keepsRate bool) {
	slower := limit.nanosPerToken() - was.nanosPerToken()
	if a != TokenBucket {
		switch {
		case limit.Per == was.Per && limit.Precision == was.Precision && limit.Tokens == was.Tokens:
			return was, false, false
		case burst && (limit.burst() < was.burst() || limit.burst() == was.burst() && slower > 0):
			return was, true, true
		}
		return limit, false, false
	}
	keepsBurst, keepsRate = burst && limit.burst() < was.burst(), rate && slower > 0
	governs = limit
	if keepsBurst || limit.burst() == was.burst() {
		governs.Burst = was.burst()
	}
	if keepsRate || slower == 0 {
		governs.Burst = governs.burst()
		governs.Tokens, governs.Per = was.Tokens, was.Per
	}
	if governs.burst() == was.burst() && governs.Tokens == was.Tokens && governs.Per == was.Per {
		governs = was // not the same in other words
	}
	return governs, keepsBurst, keepsRate
}

// replacePolicy makes p the policy of b if it still has the policy old. It reports false if not.
func (b *bucket) replacePolicy(now time.Duration, old, p *local.Policy) bool {
	folded, effect, ok := b.SetPolicy(now, old, p)
	if ok {
		b.policySet(now, folded, effect)
	}
	return ok
}

// larger returns the limit with the larger burst, and of equal bursts the one with the higher rate. Two uses of one key
// are one use, so one of their limits decides.
func larger(a, b *resolvedLimit) *resolvedLimit {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	x, y := a.limits[0], b.limits[0]
	if x == blocked || y == unlimited || x.burst() < y.burst() ||
		x.burst() == y.burst() && x.nanosPerToken() > y.nanosPerToken() {
		return b
	}
	return a
}

// exceedsCarried refuses the part if the burst of the limit that its request carries is too small. Else it sees to it that the
// key has the limit, which other requests may have changed meanwhile.
func (p *part) exceedsCarried() bool {
	limit := p.limit.limits[0]
	if b := p.bucket.Policy(); b.Rule != limit.rule() || limit.rule() == local.ByLimit && p.cost > b.Cap {
		p.setSource(p.find(p.bucket.ID()), local.FromLease)
	}
	if limit.rule() != local.ByLimit || p.cost <= limit.burst() {
		return false
	}
	b := p.bucket
	p.clear()
	p.decided(b.refuseForGood(p.now, ExceedsBurst), b)
	return true
}
