package tiered

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// WithLimit returns u with a limit that the request carries: the limit of its key, instead of the policy's own or that
// of [Policy].PerKey. It is for services that learn the limit with the request, such as a plan in a token:
//
//	d := perUser.For(user).WithLimit(plan.Limit).Allow(ctx)
//
// The key keeps the limit, also for later requests that carry none, until a request carries another one, the policy
// changes, or the process removes the key. If requests for one key carry different limits at once, in one process or in
// several, the largest of these limits is what the key can use. If a request changes the limit of its
// key, the key's tokens are treated as [Limiter.SetPolicy] says. That costs one call to Redis.
//
// The zero Limit means that the request carries none: its key keeps the limit that it has. [Unlimited] and [Blocked]
// are limits too. To take a limit back, carry Policy.Limit, or with PerKey call [Limiter.Refresh] in each process. With
// Also or Standing every carried limit is invalid. An invalid limit is counted in [PolicyStats].PerKeyFaults, logged
// once, and ignored.
func (u Use) WithLimit(limit Limit) Use {
	u.limit = nil
	if u.limiter != nil && limit != (Limit{}) {
		u.limit = u.limiter.carriedLimit(limit)
	}
	return u
}

// carriedLimit resolves a limit that a request carries. It returns nil if the policy cannot have it.
func (l *Limiter) carriedLimit(limit Limit) *resolvedLimit {
	s := l.settings.Load()
	s.mu.Lock()
	p := s.policies[limit]
	s.mu.Unlock()
	if p == nil || len(s.policy.Also) > 0 || s.policy.Standing != StandingOff {
		if err := s.policy.cannotCarry(limit); err != nil {
			if l.perKeyFaults.Add(1) == 1 {
				l.group.journal.line(slog.LevelError, "a request carried a limit that the policy cannot have: it is ignored",
					"policy", l.name, "why", err.Error())
			}
			return nil
		}
		p = l.policyOf(s, limit)
	}
	l.carries.Store(true)
	return p.Owner.(*resolvedLimit)
}

// cannotCarry returns why a key of the policy cannot have the limit, or nil.
func (p Policy) cannotCarry(limit Limit) error {
	if len(p.Also) > 0 {
		return errors.New("tiered: Policy.Also is set: must be empty if requests carry limits")
	}
	if p.Standing != StandingOff {
		return fmt.Errorf("tiered: Policy.Standing is %v: must be off if requests carry limits", p.Standing)
	}
	return p.CheckKeyLimit(limit)
}

// find returns a bucket of the part's key. If the request carries a limit, it is the key's from now on.
func (p *part) find(id local.ID) *bucket {
	b := p.limiter.group.find(p.now, id)
	if p.limit != nil {
		b.adopt(p.limit.limits[0])
	}
	return b
}

// adopt makes limit, which a request carries, the limit of b's key.
func (b *bucket) adopt(limit Limit) {
	l := b.limiter()
	for {
		s := l.settings.Load()
		has := b.Policy()
		if has.Rule == limit.rule() {
			// A key that became Unlimited or Blocked keeps the numbers of its last limit.
			if o := has.Owner.(*resolvedLimit); has.Rule != local.ByLimit || o.settings == s && o.limits[0] == limit {
				return
			}
		}
		b.setLimit(s, limit)
		if s == l.settings.Load() { // else SetPolicy may have come before this
			return
		}
	}
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
