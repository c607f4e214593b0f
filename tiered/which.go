package tiered

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// What a Decision tells of several limits on one key, and of windows: Redis said it last, and it is asked for only where a
// policy does not just refill, so that the usual decision pays nothing.

// told completes a Decision over a key: which is the limit that Redis named, from 1, and clear when it forgets all that it
// knew, as a time since the Group's base; zeros where it has said nothing yet.
func (d *Decision) told(p *local.Policy, now time.Duration, which uint8, clear time.Duration) {
	if d.Reason < Granted || d.Reason > ShareSpent {
		return
	}
	p.Owner.(*plan).name(d, which)
	d.clears(p, now, clear)
}

// clears says when all that counts is forgotten, where Redis has said so.
func (d *Decision) clears(p *local.Policy, now, clear time.Duration) {
	if d.ResetAfter == 0 || clear == 0 {
		return
	}
	if d.ResetAfter = clear - now; d.ResetAfter <= 0 { // what is taken from a lease since counts until the lease ends
		if p.Whole != nil {
			p = p.Whole
		}
		d.ResetAfter = resetAfter(p.Cap-d.Remaining, float64(p.Per)/float64(p.Tokens))
	}
}

// name names one of several limits: before Redis has, and where only the burst decides, the one with the smallest burst.
func (p *plan) name(d *Decision, which uint8) {
	if len(p.limits) == 1 {
		return
	}
	if which == 0 || int(which) > len(p.limits) {
		which = p.smallest
	}
	d.Which, d.Limit = which, p.limits[which-1].burst()
}

// smallest is the limit with the smallest burst, from 1.
func smallest(limits []Limit) (which uint8) {
	for i, l := range limits {
		if i == 0 || l.burst() < limits[which-1].burst() {
			which = uint8(i + 1)
		}
	}
	return which
}

// LimitOf reports the limit that a Decision of this Limiter was made by: of several on a key the one that it names
// ([Decision].Which), with [Policy].PerKey that of its key. It asks nobody. It reports false when the process does not keep the
// key any more.
func (l *Limiter) LimitOf(d Decision) (limit Limit, ok bool) {
	t := l.terms.Load()
	if t.policy.PerKey == nil {
		if i := int(d.Which) - 2; i >= 0 && i < len(t.policy.Also) {
			return t.policy.Also[i], true
		}
		return t.policy.Limit, true
	}
	b, ok := l.group.cache.Find(l.home(d.Key))
	if !ok || b.Policy().Rule == local.Unresolved {
		return Limit{}, false
	}
	switch p := b.Policy(); p.Rule {
	case local.Unlimited:
		return Unlimited, true
	case local.Blocked:
		return Blocked, true
	default:
		return p.Owner.(*plan).limits[0], true
	}
}

// named is the limit, of several, that a reply names.
func named(call *lua.Call, r lua.Reply) uint8 {
	if len(call.Also) == 0 {
		return 0
	}
	return uint8(r.Which)
}
