package tiered

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// This file completes a Decision for keys with several limits and for windows, with what Redis said last. It is
// used only if a policy is not a simple token bucket, so that the usual decision pays nothing.

// addReport adds to a Decision what Redis said last. which is the number of the limit that Redis named, from 1.
// clear is when nothing of the key counts any more, as a time since the Group's base. Each is 0 if Redis has not
// said it yet.
func (d *Decision) addReport(p *local.Policy, now time.Duration, which uint8, clear time.Duration) {
	if d.Reason < Granted || d.Reason > ShareSpent {
		return
	}
	o := p.Owner.(*resolvedLimit)
	o.setLimit(d, which)
	d.setResetAfter(p, now, clear)
	if len(o.limits) == 1 || d.ResetAfter == 0 {
		return
	}
	limit := o.limits[d.LimitNumber-1] // Redis says when all of them are full
	own := limit.retention(SlidingWindow)
	if p.Call.Algorithm == lua.TokenBuckets {
		own = resetAfter(limit.burst()-d.Remaining, limit.nanosPerToken())
	}
	d.ResetAfter = max(min(d.ResetAfter, own), d.RetryAfter)
}

// setResetAfter sets ResetAfter to the time until clear, if Redis has said it.
func (d *Decision) setResetAfter(p *local.Policy, now, clear time.Duration) {
	if d.ResetAfter == 0 || clear == 0 {
		return
	}
	if d.ResetAfter = clear - now; d.ResetAfter <= 0 { // tokens taken from a lease since count until the lease ends
		d.ResetAfter = resetAfter(p.Cap-d.Remaining, float64(p.Per)/float64(p.Tokens))
	}
	d.ResetAfter = max(d.ResetAfter, d.RetryAfter)
}

// setLimit sets the limit of d. If Redis has not named one, or if only the burst decides, it is the one with the
// smallest burst, and d has that burst already.
func (p *resolvedLimit) setLimit(d *Decision, which uint8) {
	if len(p.limits) == 1 {
		return
	}
	if d.LimitNumber = p.smallest; 0 < which && int(which) <= len(p.limits) {
		d.LimitNumber, d.Burst = which, p.limits[which-1].burst()
	}
}

// smallest returns the number of the limit with the smallest burst, from 1.
func smallest(limits []Limit) (which uint8) {
	for i, l := range limits {
		if i == 0 || l.burst() < limits[which-1].burst() {
			which = uint8(i + 1)
		}
	}
	return which
}

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

// slowerThan reports whether l brings fewer tokens than m in the same time.
func (l Limit) slowerThan(m Limit) bool { return l.nanosPerToken() > m.nanosPerToken() }

// named returns the number of the limit that a reply names, 0 if there is only one.
func named(call *lua.Call, r lua.Reply) uint8 {
	if len(call.Also) == 0 {
		return 0
	}
	return uint8(r.Which)
}
