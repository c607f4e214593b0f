package tiered

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// An outcome is how a request for one key was decided. Whatever decides returns one, and only [outcome.write] makes a
// [Decision] of it.
//
// It goes up in registers, because the compiler keeps a struct there that has at most four fields, as its own have, and 32
// bytes. With one field more a decision costs half as much again, and as much with a Decision in its place.
type outcome struct {
	policy *local.Policy // that decided; nil if nothing did
	how
	left int64 // tokens, with those of a standing share; for some reasons 0

	// retry is the time until the tokens can be there; 0 for never. Three read it: write reports it, refusesLonger chooses
	// among keys by it, and a wait sleeps by it or gives up.
	retry time.Duration
}

// how is the part of an outcome without numbers.
type how struct {
	reason  Reason
	tier    Tier
	expired bool // Canceled: the context's deadline passed
}

// allowed reports whether the request is admitted.
func (h how) allowed() bool { return Granted <= h.reason && h.reason <= Shadowed }

// expired reports whether a context that ended did so by its deadline.
func expired(ctx context.Context) bool { return errors.Is(ctx.Err(), context.DeadlineExceeded) }

// waitHelps reports whether waiting may help.
func (o outcome) waitHelps() bool {
	return (o.reason == Limited || o.reason == FallbackSpent) && o.retry > 0
}

// write writes the Decision of an outcome at now, of a request for key that costs n. b is the key's bucket, nil if this
// process keeps none.
func (o outcome) write(d *Decision, key string, n int64, b *bucket, now time.Duration) {
	p, r := o.policy, o.reason
	if p == nil {
		*d = Decision{}
		return
	}
	d.Allowed, d.Reason, d.Tier, d.Expired, d.LimitNumber = o.allowed(), r, o.tier, o.expired, 0
	d.Policy, d.Key, d.Cost = p.Owner.(*resolvedLimit).limiter.name, key, n
	d.Burst, d.Remaining, d.RetryAfter, d.ResetAfter = p.Cap, o.left, o.retry, 0
	if p.Rule == local.Unlimited || p.Rule == local.Blocked { // the numbers of p mean nothing
		d.Burst, d.Remaining = 0, 0
		if p.Rule == local.Unlimited {
			d.Burst, d.Remaining = math.MaxInt64, math.MaxInt64
		}
		return
	}
	whole := p
	if p.Parent != nil { // standing shares have the rest of it, and no request may cost more than the part that Redis has
		if whole = p.Parent; r != ExceedsBurst {
			d.Burst = whole.Cap
		}
	}
	d.Remaining = min(d.Remaining, d.Burst)
	if Granted <= r && r <= FallbackSpent || r == ExceedsBurst || r == InvalidCost {
		d.ResetAfter = max(resets(whole, o.left), o.retry)
	}
	if p.Call.Algorithm != lua.TokenBucket {
		which, clear := uint8(0), time.Duration(0)
		if b != nil {
			which, clear = b.LastReport(r == Limited || r == Shadowed)
		}
		o.report(d, now, which, clear)
		if b == nil && r == Granted && p.Parent != nil { // what nobody of this process asked Redis about may be full
			d.ResetAfter = 0
		}
		o.addFullShare(d, now)
	}
}

// report completes a Decision for keys with several limits and for windows, with what Redis said last: the number of the limit
// that it named, from 1, and when nothing of the key counts any more, as a time since the Group's base. Each is 0 if Redis has
// not said it yet. A simple token bucket needs none of it.
func (o outcome) report(d *Decision, now time.Duration, which uint8, clear time.Duration) {
	switch o.reason {
	case Canceled, Unavailable, InvalidKey:
		return
	case ExceedsBurst, InvalidCost, Unknown: // only the burst decides
		which = 0
	}
	owner := o.policy.Owner.(*resolvedLimit)
	if len(owner.limits) > 1 {
		// If Redis has not named one it is the one with the smallest burst, and d has that burst already.
		if d.LimitNumber = owner.smallest; 0 < which && int(which) <= len(owner.limits) {
			d.LimitNumber, d.Burst = which, owner.limits[which-1].burst()
		}
	}
	if d.ResetAfter == 0 {
		return
	}
	if clear > 0 {
		if d.ResetAfter = clear - now; d.ResetAfter <= 0 { // tokens taken from a lease since count until the lease ends
			p := o.policy
			d.ResetAfter = resetAfter(p.Cap-d.Remaining, float64(p.Per)/float64(p.Tokens))
		}
	}
	if d.LimitNumber > 0 && o.reason <= FallbackSpent { // Redis says when all of them are full
		limit := owner.limits[d.LimitNumber-1]
		own := limit.retention(SlidingWindow)
		if o.policy.Call.Algorithm == lua.TokenBuckets {
			own = resetAfter(limit.burst()-d.Remaining, limit.nanosPerToken())
		}
		d.ResetAfter = min(d.ResetAfter, own)
	}
	d.ResetAfter = max(d.ResetAfter, d.RetryAfter)
}

// addFullShare adds to a Decision by several limits when the standing share is full. It says already when the part of Redis is.
func (o outcome) addFullShare(d *Decision, now time.Duration) {
	if Granted <= o.reason && o.reason <= FallbackSpent {
		l := o.policy.Owner.(*resolvedLimit).limiter
		d.ResetAfter = max(d.ResetAfter, l.share(l.id(d.Key), o.policy).full(now))
	}
}

// tellCarried has a Decision tell of the limit that its request carries, and not of a larger one that its key has.
func (o *resolvedLimit) tellCarried(d *Decision) {
	limit := o.limits[0]
	if burst := limit.burst(); limit.rule() == local.ByLimit && burst < d.Burst && d.Burst < math.MaxInt64 {
		d.Burst, d.Remaining = burst, min(d.Remaining, burst)
		if o.settings.policy.Algorithm == TokenBucket && d.ResetAfter > 0 {
			d.ResetAfter = max(resetAfter(burst-d.Remaining, limit.nanosPerToken()), d.RetryAfter)
		}
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

// byFailMode returns the outcome of a fail mode's verdict.
func byFailMode(p *local.Policy, v local.Verdict) outcome {
	o := outcome{p, how{Unavailable, Failover, false}, v.Left, 0}
	switch v.Outcome {
	case local.Admitted: // of the lease
		o.reason, o.tier = Granted, Local
	case local.Fallback:
		o.reason = Fallback
	case local.Opened:
		o.reason = Open
	case local.FallbackSpent:
		if o.reason = FallbackSpent; v.Retry < math.MaxInt64 { // otherwise never, while Redis does not answer
			o.retry = v.Retry
		}
	}
	return o
}

// byRule returns the outcome of a rule, or that of a limit whose burst is too small.
func (b *bucket) byRule(now time.Duration) outcome {
	switch p := b.Policy(); p.Rule {
	case local.Unlimited:
		return outcome{p, how{Granted, Local, false}, 0, 0}
	case local.Blocked:
		return outcome{p, how{ExceedsBurst, Local, false}, 0, 0}
	}
	return b.refuseForGood(now, ExceedsBurst)
}

// refuseForGood returns a refusal that more tokens could not have prevented. What is left is what this process knows of b.
func (b *bucket) refuseForGood(now time.Duration, r Reason) outcome {
	return outcome{b.Policy(), how{r, None, false}, b.seenLeft(now), 0}
}

// seenLeft returns the tokens that this process holds, and those last seen in Redis.
func (b *bucket) seenLeft(now time.Duration) int64 {
	held, level := b.Peek(now)
	return min(held+max(level, 0), b.Policy().Cap)
}

// invalid returns the refusal of a request that is not valid, and the bucket of its key if there is one.
func (l *Limiter) invalid(key string, r Reason) (outcome, *bucket) {
	p := l.settings.Load().initial
	if r != InvalidKey {
		if b, ok := l.group.cache.Find(l.id(key)); ok && b.Policy().Rule != local.Unresolved {
			return b.refuseForGood(l.group.now(), r), b
		}
	}
	left := p.Cap // this process does not know the key: its bucket may be full
	if r == InvalidKey {
		left = 0
	}
	return outcome{p, how{r, None, false}, left, 0}, nil
}

// refusal returns the Decision on a request for n tokens that is not valid, and counts it.
func (l *Limiter) refusal(key string, n int64, r Reason) (d Decision) {
	if l.isZero() {
		return d
	}
	o, b := l.invalid(key, r)
	l.countRequest(o, key, 0)
	l.tell(&d, l.tryOut(o, key, 0), key, n, b, l.group.now())
	return d
}

// tell writes the Decision of a request for n tokens that is counted, and tells the hook.
func (l *Limiter) tell(d *Decision, o outcome, key string, n int64, b *bucket, now time.Duration) {
	o.write(d, key, n, b, now)
	if l.mode.Load()&modeTraced != 0 {
		l.group.trace.decision(*d)
	}
}

// tryOut is asTried for a request of n tokens, which it counts.
func (l *Limiter) tryOut(o outcome, key string, n int64) outcome {
	tried := l.asTried(o)
	if tried != o {
		l.shadowed.Add(max(n, 0))
		l.requests.Add(key, report.Shadowed, n, 1)
	}
	return tried
}

// asTried makes a refusal an admission if the policy is only tried out. Nobody is to wait for it.
func (l *Limiter) asTried(o outcome) outcome {
	if l.mode.Load()&modeShadow != 0 && !o.allowed() {
		o.reason, o.retry = Shadowed, 0
	}
	return o
}
