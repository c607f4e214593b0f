package tiered

import "github.com/tiered-limiter/tiered-limiter/local"

// LimitOf returns the limit by which this Limiter made the Decision d: the limit that d names ([Decision].LimitNumber),
// or with [Policy].PerKey that of its key. It reads only memory. It reports false if the process no longer keeps
// the key.
func (l *Limiter) LimitOf(d Decision) (limit Limit, ok bool) {
	if l.isZero() {
		return Limit{}, false
	}
	s := l.settings.Load()
	if s.policy.PerKey == nil && !l.carries.Load() {
		if i := int(d.LimitNumber) - 2; i >= 0 && i < len(s.policy.Also) {
			return s.policy.Also[i], true
		}
		return s.policy.Limit, true
	}
	b, ok := l.group.cache.Find(l.id(d.Key))
	if !ok || b.Policy().Rule == local.Unresolved {
		return Limit{}, false
	}
	switch p := b.Policy(); p.Rule {
	case local.Unlimited:
		return Unlimited(), true
	case local.Blocked:
		return Blocked(), true
	default:
		o := p.Owner.(*resolvedLimit)
		if o.mixed != nil && o.limits[0].burst() != d.Burst {
			return o.settings.byBurst(d.Burst), true
		}
		return o.limits[0], true
	}
}

// byBurst returns a limit with a burst that a request has carried.
func (s *settings) byBurst(burst int64) (found Limit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.policies {
		if l.rule() == local.ByLimit && l.burst() == burst && (found == (Limit{}) || found.slowerThan(l)) {
			found = l
		}
	}
	if found == (Limit{}) {
		return Limit{Tokens: burst, Per: s.policy.Limit.Per}
	}
	return found
}
