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

// tell writes the Decision of a request, and all that the engine tells of it.
func tell(d *Decision, t *engine.Told) { write(d, t.Outcome, t.Key, t.Cost, t.Bucket, t.Now, t) }

// write writes the Decision of an outcome at now, of a request for key that costs n. b is the key's
// bucket, nil if this process keeps none. t is what else the engine tells. It is nil if there is
// nothing else, so that most decisions do not pay for it.
func write(d *Decision, o local.Outcome, key string, n int64, b *engine.Bucket, now time.Duration, t *engine.Told) {
	p, r := o.Policy, Reason(o.Reason)
	if p == nil {
		*d = Decision{}
		return
	}
	owner := engine.Owner(p)
	d.Allowed, d.Reason, d.Tier, d.Expired, d.LimitNumber = o.Allowed(), r, Tier(o.Tier), o.Expired, 0
	d.Policy, d.Key, d.Cost = owner.Limiter.Name, key, n
	d.RetryAfter, d.ResetAfter = o.Retry, 0
	switch p.Rule { // without a limit the numbers of p mean nothing
	case local.Unlimited:
		d.Burst, d.Remaining = math.MaxInt64, math.MaxInt64
		return
	case local.Blocked:
		d.Burst, d.Remaining = 0, 0
		return
	}
	d.Burst = p.Cap
	if p.Parent != nil && r != ExceedsBurst { // no request may cost more than the part that Redis has
		d.Burst = p.Parent.Cap
	}
	d.Remaining = max(min(o.Left, d.Burst), 0)
	if r == Limited || r == FallbackSpent { // tokens that no single source has, or that are left for others, are none for this request
		d.Remaining = min(d.Remaining, n-1)
	}
	told := Granted <= r && r <= FallbackSpent || r == ExceedsBurst || r == InvalidCost
	if p.Call.Algorithm.Has(lua.OneLevel) {
		var carried *engine.Resolved
		if t != nil {
			carried = d.tellCarried(t.Carried)
		}
		if told {
			d.ResetAfter = d.levelFull(o, carried)
		}
	} else {
		d.tellSeveral(o, b, now, t, told)
	}
	if t != nil && t.Limit > 0 { // p has only this one
		d.LimitNumber = t.Limit
	}
}

// tellSeveral writes into a Decision for a key with windows or several limits what Redis said last:
// the number of the limit that it named, and when nothing of the key counts any more.
func (d *Decision) tellSeveral(o local.Outcome, b *engine.Bucket, now time.Duration, t *engine.Told, told bool) {
	var which uint8
	var clear time.Duration // since the Group's base; 0 if Redis has not said it
	switch {
	case t != nil && t.Dry:
		which, clear = t.Which, t.Clear
	case b != nil:
		which, clear = b.Hot().LastReport(d.Reason == Limited || d.Reason == Shadowed)
	}
	if d.tellLimit(engine.Owner(o.Policy), which); told {
		d.ResetAfter = d.severalFull(o, clear, now, b != nil || clear > 0)
	}
	if t == nil {
		return
	}
	// Afterwards, because what the key has left says when it is full.
	if carried := d.tellCarried(t.Carried); carried != nil && d.ResetAfter > 0 && !o.Policy.Call.Algorithm.Has(lua.Window) {
		limit := carried.Limits[max(d.LimitNumber, 1)-1]
		d.ResetAfter = d.refills(limit.Most(), limit.NanosPerToken(), o.Left < 0)
	}
}

// tellLimit writes into a Decision for a key with several limits the limit that Redis named last,
// from 1; 0 if it has named none. Then the limit is the one with the smallest burst, and d has that
// burst already.
func (d *Decision) tellLimit(owner *engine.Resolved, which uint8) {
	switch d.Reason {
	case Canceled, Unavailable, InvalidKey:
		return
	case ExceedsBurst, InvalidCost, Unknown: // only the burst decides
		which = 0
	}
	if len(owner.Limits) > 1 {
		if d.LimitNumber = owner.Smallest; 0 < which && int(which) <= len(owner.Limits) {
			d.LimitNumber, d.Burst = which, owner.Limits[which-1].Most()
		}
	}
}

// tellCarried writes into a Decision the limit that its request carries, instead of a larger one
// that its key has. It returns that limit, or nil if the Decision describes the key's.
func (d *Decision) tellCarried(o *engine.Resolved) *engine.Resolved {
	if o == nil {
		return nil
	}
	if o.Limit.Rule() != local.ByLimit || d.Burst == math.MaxInt64 {
		return nil
	}
	which, used, left := o.Smallest, d.Burst-d.Remaining, d.Remaining
	if d.LimitNumber > 0 && d.Reason <= FallbackSpent { // else only the burst decides
		which = d.LimitNumber
	}
	burst := o.Limits[which-1].Most()
	if burst < d.Burst {
		if left = min(left, burst); o.Settings.Windows { // what the window counts, counts by each limit
			left = max(burst-used, 0)
		}
	}
	if most := o.Most(); left > most { // of several another one has fewer
		which, burst, left = o.Smallest, most, most
	}
	if burst >= d.Burst && left == d.Remaining {
		return nil
	}
	if d.Burst, d.Remaining = burst, left; d.LimitNumber > 0 {
		d.LimitNumber = which
	}
	return o
}

// levelFull returns the time until a token bucket is full again without further requests. carried
// is the limit that d tells of instead of the key's, or nil.
func (d *Decision) levelFull(o local.Outcome, carried *engine.Resolved) time.Duration {
	p := o.Policy
	whole := p
	if p.Parent != nil { // standing shares have the rest of it
		whole = p.Parent
	}
	reset := o.Retry
	if left := max(o.Left, 0); left < whole.Cap {
		reset = max(reset, engine.ResetAfter(whole.Cap-left, whole.NanosPerToken))
	}
	switch {
	case carried != nil && reset > 0:
		limit := carried.Limits[0]
		return d.refills(limit.Most(), limit.NanosPerToken(), o.Left < 0)
	case o.Left < 0:
		return max(reset, d.refills(p.Cap, p.NanosPerToken, true))
	}
	return reset
}

// severalFull is levelFull for a key with windows or several limits. clear is when nothing of the
// key counts any more, by what Redis said last, and 0 if it did not say. known says that Redis was
// asked about the key.
func (d *Decision) severalFull(o local.Outcome, clear, now time.Duration, known bool) time.Duration {
	p, owner, reset := o.Policy, engine.Owner(o.Policy), o.Retry
	whole := p
	if p.Parent != nil {
		whole = p.Parent
	}
	if max(o.Left, 0) < whole.Cap {
		reset = max(reset, owner.Retention)
	}
	switch {
	case reset == 0:
	case !known && (d.Reason == Granted || d.Reason > FallbackSpent) && p.Parent != nil: // what nobody of this process asked Redis about may be full
		reset = 0
	default:
		if clear > 0 {
			if reset = clear - now; reset <= 0 { // tokens taken from a lease since count until the lease ends
				reset = engine.ResetAfter(max(p.Cap-d.Remaining, 0), float64(p.Per)/float64(p.Tokens))
			}
		}
		if d.LimitNumber > 0 && d.Reason <= FallbackSpent { // Redis says when all of them are full
			limit := owner.Limits[d.LimitNumber-1]
			own := Limit(limit).retention(SlidingWindow)
			if !p.Call.Algorithm.Has(lua.Window) {
				own = d.refills(limit.Most(), limit.NanosPerToken(), o.Left < 0)
			}
			reset = min(reset, own)
		}
		reset = max(reset, d.RetryAfter)
	}
	if d.Reason <= FallbackSpent { // so far it is when the part of Redis is full
		reset = max(reset, owner.Limiter.ShareFull(p, d.Key, now))
	}
	return reset
}

// refills returns when a token bucket is full: by what remains or, if it owes, by when it may have
// what was refused, because that time knows how much it owes.
func (d *Decision) refills(most int64, nanosPerToken float64, owes bool) time.Duration {
	full := engine.ResetAfter(most-d.Remaining, nanosPerToken)
	if owes {
		rest := engine.ResetAfter(most-d.Cost, nanosPerToken)
		full = max(full, d.RetryAfter+min(rest, math.MaxInt64-d.RetryAfter))
	}
	return max(full, d.RetryAfter)
}

// valid returns Granted, or the reason why no limit would admit the request. For a nil or zero
// Limiter it returns Unknown.
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
