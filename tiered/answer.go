package tiered

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// answer is the part of a Decision that does not follow from the limit.
type answer struct {
	reason Reason
	tier   Tier
	left   int64 // tokens; for some reasons unknown, and 0
	retry  time.Duration
}

// decide writes a Decision by the limit of b, made at now. All arguments fit into registers.
func (b *bucket) decide(d *Decision, now time.Duration, key string, a answer) {
	p := b.Policy()
	p.Owner.(*resolvedLimit).limiter.decideBy(d, p, key, a)
	if p.Call.Algorithm != lua.TokenBucket {
		which, clear := b.LastReport(a.reason == Limited)
		d.addReport(p, now, which, clear)
	}
}

// decideBy is decide for a policy without a bucket.
func (l *Limiter) decideBy(d *Decision, p *local.Policy, key string, a answer) {
	r := a.reason
	d.Allowed, d.Reason, d.Tier = Granted <= r && r <= Open, r, a.tier
	limit, left, remaining := p.Cap, a.left, a.left
	if whole := p.Parent; whole != nil { // of which standing shares have a part
		if p = whole; r != ExceedsBurst { // no request may cost more than the part that Redis has
			limit = whole.Cap
		}
	}
	d.Policy, d.Key, d.Burst, d.Remaining, d.RetryAfter = l.name, key, limit, remaining, a.retry
	if Granted <= r && r <= ShareSpent || r == ExceedsBurst || r == InvalidCost {
		d.ResetAfter = max(resets(p, left), a.retry)
	}
}

// fallBack decides over n tokens by the fail mode. It writes no Decision if the verdict is Outdated: the bucket was
// evicted, or its policy has changed.
func (b *bucket) fallBack(d *Decision, now time.Duration, key string, n int64) local.Verdict {
	g := b.limiter().group
	v := b.Fallback(now, n, g.fleetOf(b))
	switch v.Outcome {
	case local.Outdated:
		return v
	case local.Shared:
		g.warnIfFleetUnknown()
	}
	b.byFailMode(d, now, key, v)
	return v
}

// byFailMode writes the Decision of a fail mode.
func (b *bucket) byFailMode(d *Decision, now time.Duration, key string, v local.Verdict) {
	a := answer{Unavailable, Failover, v.Left, 0}
	switch v.Outcome {
	case local.Admitted: // of the lease
		a.reason, a.tier = Granted, Local
	case local.Shared:
		a.reason = Shared
	case local.Opened:
		a.reason = Open
	case local.ShareSpent:
		if a.reason = ShareSpent; v.Retry < math.MaxInt64 { // otherwise never, while Redis does not answer
			a.retry = v.Retry
		}
	}
	b.decide(d, now, key, a)
}

// refuseForGood writes a refusal that more tokens could not have prevented. Remaining is what this process knows of b.
func (l *Limiter) refuseForGood(d *Decision, b *bucket, key string, r Reason) {
	p, now := b.Policy(), l.group.now()
	held, level := b.Peek(now)
	l.decideBy(d, p, key, answer{r, None, min(held+max(level, 0), p.Cap), 0})
	if p.Call.Algorithm != lua.TokenBucket {
		_, clear := b.LastReport(false)
		d.setResetAfter(p, now, clear)
	}
}

// invalid refuses a request that is not valid, or that costs more than any burst.
func (l *Limiter) invalid(d *Decision, key string, r Reason) {
	p := l.settings.Load().initial
	if r != InvalidKey {
		if b, ok := l.group.cache.Find(l.id(key)); ok && b.Policy().Rule != local.Unresolved {
			if p = b.Policy(); p.Rule == local.ByLimit {
				l.refuseForGood(d, b, key, r)
				p.Owner.(*resolvedLimit).setLimit(d, 0)
				return
			}
		}
	}
	switch p.Rule { // without a limit the numbers of p mean nothing
	case local.Unlimited:
		l.unlimited(d, key)
		d.Allowed, d.Reason, d.Tier = false, r, None
	case local.Blocked:
		l.refuseBlocked(d, key)
		d.Reason, d.Tier = r, None
	default: // this process does not know the key: its bucket may be full
		left := p.Cap
		if r == InvalidKey {
			left = 0
		}
		l.decideBy(d, p, key, answer{r, None, left, 0})
	}
}

// refusal returns the Decision on a request that is not valid.
func (l *Limiter) refusal(key string, r Reason) (d Decision) {
	if l.isZero() {
		return d
	}
	l.invalid(&d, key, r)
	l.countRequest(&d, 0)
	l.finish(&d, 0)
	return d
}
