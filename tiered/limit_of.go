package tiered

import (
	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// LimitOf returns the limit by which this Limiter made the Decision d, from memory. It reports false if the process no
// longer keeps the key.
func (l *Limiter) LimitOf(d Decision) (limit Limit, ok bool) {
	if l.isZero() {
		return Limit{}, false
	}
	if p := l.policy.Load(); p.PerKey == nil && !l.core.Carries() {
		if i := int(d.LimitNumber) - 2; i >= 0 && i < len(p.Also) {
			return p.Also[i], true
		}
		return p.Limit, true
	}
	p, ok := l.core.Find(d.Key)
	if !ok {
		return Limit{}, false
	}
	switch p.Rule {
	case local.Unlimited:
		return Unlimited(), true
	case local.Blocked:
		return Blocked(), true
	default:
		return Limit(engine.Owner(p).LimitOf(d.Burst)), true
	}
}
