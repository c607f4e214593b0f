package tiered

import (
	"errors"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// The engine's reasons and tiers are those of a Decision, or this does not compile.
var (
	_ = [1]struct{}{}[int(Canceled)-int(local.Canceled)]
	_ = [1]struct{}{}[int(Failover)-int(local.Failover)]
)

// Two end a Decision: Limiter.allow, which needs no more than write, and tell. What is only reported differently comes there, because
// a Decision's times are computed by each other.

// tell writes the Decision of a request, and all that the engine tells of it.
func tell(d *Decision, t *engine.Told) {
	write(d, t.Outcome, t.Key, t.Cost, t.Bucket, t.Now)
	if t.Dry && !t.Policy.Call.Algorithm.Has(lua.OneLevel) {
		tellSeveral(d, t.Outcome, t.Now, t.Which, t.Clear)
		addFullShare(d, t.Outcome, t.Now)
	}
	if t.Limit > 0 {
		d.LimitNumber = t.Limit
	}
	if t.Carried != nil {
		tellCarried(d, t.Carried, t.Left < 0)
	}
}

// write writes the Decision of an outcome at now, of a request for key that costs n. b is the key's bucket, nil if this
// process keeps none.
func write(d *Decision, o local.Outcome, key string, n int64, b *engine.Bucket, now time.Duration) {
	p, r := o.Policy, Reason(o.Reason)
	if p == nil {
		*d = Decision{}
		return
	}
	d.Allowed, d.Reason, d.Tier, d.Expired, d.LimitNumber = o.Allowed(), r, Tier(o.Tier), o.Expired, 0
	d.Policy, d.Key, d.Cost = engine.Owner(p).Limiter.Name, key, n
	d.RetryAfter, d.ResetAfter = o.Retry, 0
	switch p.Rule { // without a limit the numbers of p mean nothing
	case local.Unlimited:
		d.Burst, d.Remaining = math.MaxInt64, math.MaxInt64
		return
	case local.Blocked:
		d.Burst, d.Remaining = 0, 0
		return
	}
	whole, burst := p, p.Cap
	if p.Parent != nil { // standing shares have the rest of it, and no request may cost more than the part that Redis has
		if whole = p.Parent; r != ExceedsBurst {
			burst = whole.Cap
		}
	}
	d.Burst, d.Remaining = burst, max(min(o.Left, burst), 0)
	if r == Limited || r == FallbackSpent { // tokens that no single source has, or that are left for others, are none for this request
		d.Remaining = min(d.Remaining, n-1)
	}
	if Granted <= r && r <= FallbackSpent || r == ExceedsBurst || r == InvalidCost {
		d.ResetAfter = max(resets(whole, max(o.Left, 0)), o.Retry)
		if o.Left < 0 && p.Call.Algorithm.Has(lua.OneLevel) {
			d.ResetAfter = max(d.ResetAfter, d.refills(p.Cap, p.NanosPerToken, true))
		}
	}
	if !p.Call.Algorithm.Has(lua.OneLevel) {
		which, clear := uint8(0), time.Duration(0)
		if b != nil {
			which, clear = b.Hot().LastReport(r == Limited || r == Shadowed)
		}
		tellSeveral(d, o, now, which, clear)
		if b == nil && r == Granted && p.Parent != nil { // what nobody of this process asked Redis about may be full
			d.ResetAfter = 0
		}
		addFullShare(d, o, now)
	}
}

// tellSeveral completes a Decision for keys with several limits and for windows, with what Redis said last: the number of the limit
// that it named, from 1, and when nothing of the key counts any more, as a time since the Group's base. Each is 0 if Redis has
// not said it yet. A simple token bucket needs none of it.
func tellSeveral(d *Decision, o local.Outcome, now time.Duration, which uint8, clear time.Duration) {
	switch Reason(o.Reason) {
	case Canceled, Unavailable, InvalidKey:
		return
	case ExceedsBurst, InvalidCost, Unknown: // only the burst decides
		which = 0
	}
	owner := engine.Owner(o.Policy)
	if len(owner.Limits) > 1 {
		// If Redis has not named one it is the one with the smallest burst, and d has that burst already.
		if d.LimitNumber = owner.Smallest; 0 < which && int(which) <= len(owner.Limits) {
			d.LimitNumber, d.Burst = which, owner.Limits[which-1].Most()
		}
	}
	if d.ResetAfter == 0 {
		return
	}
	if clear > 0 {
		if d.ResetAfter = clear - now; d.ResetAfter <= 0 { // tokens taken from a lease since count until the lease ends
			p := o.Policy
			d.ResetAfter = engine.ResetAfter(p.Cap-d.Remaining, float64(p.Per)/float64(p.Tokens))
		}
	}
	if d.LimitNumber > 0 && Reason(o.Reason) <= FallbackSpent { // Redis says when all of them are full
		limit := owner.Limits[d.LimitNumber-1]
		own := Limit(limit).retention(SlidingWindow)
		if !o.Policy.Call.Algorithm.Has(lua.Window) {
			own = d.refills(limit.Most(), limit.NanosPerToken(), o.Left < 0)
		}
		d.ResetAfter = min(d.ResetAfter, own)
	}
	d.ResetAfter = max(d.ResetAfter, d.RetryAfter)
}

// refills returns when a token bucket is full: by what remains or, if it owes, by when it may have what was refused, because
// that time knows how much it owes.
func (d *Decision) refills(most int64, nanosPerToken float64, owes bool) time.Duration {
	full := engine.ResetAfter(most-d.Remaining, nanosPerToken)
	if owes {
		rest := engine.ResetAfter(most-d.Cost, nanosPerToken)
		full = max(full, d.RetryAfter+min(rest, math.MaxInt64-d.RetryAfter))
	}
	return max(full, d.RetryAfter)
}

// addFullShare adds to a Decision by several limits when the standing share is full. It says already when the part of Redis is.
func addFullShare(d *Decision, o local.Outcome, now time.Duration) {
	if local.Granted <= o.Reason && o.Reason <= local.FallbackSpent {
		d.ResetAfter = max(d.ResetAfter, engine.Owner(o.Policy).Limiter.ShareFull(o.Policy, d.Key, now))
	}
}

// tellCarried has a Decision tell of the limit that its request carries, and not of a larger one that its key has.
func tellCarried(d *Decision, o *engine.Resolved, owes bool) {
	limit := o.Limits[0]
	if burst := limit.Most(); limit.Rule() == local.ByLimit && burst < d.Burst && d.Burst < math.MaxInt64 {
		used := d.Burst - d.Remaining
		d.Burst, d.Remaining = burst, min(d.Remaining, burst)
		switch {
		case o.Settings.Windows: // what the window counts, counts by each limit
			d.Remaining = max(burst-used, 0)
		case d.ResetAfter > 0:
			d.ResetAfter = d.refills(burst, limit.NanosPerToken(), owes)
		}
	}
}

// valid returns Granted, or the reason why no limit would admit the request. For a nil or zero Limiter it returns Unknown.
func (l *Limiter) valid(key string, n int64) Reason {
	if l.isZero() {
		return Unknown
	}
	return Reason(engine.Valid(key, n))
}

// refusal returns the Decision on a request for n tokens that is not valid, and counts it.
func (l *Limiter) refusal(key string, n int64, r Reason) (d Decision) {
	if l.isZero() {
		return d
	}
	t := l.core.Refuse(key, n, local.Reason(r))
	tell(&d, &t)
	return d
}

// errorOf makes a *LimitedError of the engine's refusal, and returns any other error as it is.
func errorOf(err error) error {
	var r *engine.Refusal
	if !errors.As(err, &r) {
		return err
	}
	e := &LimitedError{late: r.Late}
	tell(&e.Decision, &r.Told)
	return e
}
