package tiered

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

var (
	unlimited = Limit{Tokens: math.MaxInt64, Burst: math.MaxInt64}
	blocked   = Limit{Tokens: math.MinInt64, Burst: math.MinInt64}
)

// Unlimited returns a limit that admits everything and needs no Redis. Use it as [Policy].Limit, as the result of
// [Policy].PerKey, or in [Use.WithLimit]. Burst and Remaining of its Decisions are math.MaxInt64.
func Unlimited() Limit { return unlimited }

// Blocked returns a limit that refuses everything, with Reason ExceedsBurst, and needs no Redis. Use it where
// [Unlimited] can be used. Its burst is 0, so waiting does not help.
func Blocked() Limit { return blocked }

// rule returns whether l is Unlimited, Blocked, or a limit.
func (l Limit) rule() local.Rule {
	switch l {
	case unlimited:
		return local.Unlimited
	case blocked:
		return local.Blocked
	}
	return local.ByLimit
}

func validTokens(n int64) bool { return n >= 1 && n <= maxTokens }

func validPeriod(d time.Duration) bool {
	return d >= time.Microsecond && d <= maxPer && d%time.Microsecond == 0
}

// validate reports all problems of l, each with field, value and rule.
func (l Limit) validate(name string) error {
	if l.rule() != local.ByLimit {
		return nil
	}
	if l == (Limit{}) {
		return fmt.Errorf("tiered: %s is zero: must be set, as in tiered.PerSecond(100)", name)
	}
	var all []error
	bad := func(field string, value any, rule string) {
		all = append(all, fmt.Errorf("tiered: %s.%s is %v: %s", name, field, value, rule))
	}
	if !validTokens(l.Tokens) {
		bad("Tokens", l.Tokens, "must be 1 to 2^40")
	}
	if !validPeriod(l.Per) {
		bad("Per", l.Per, "must be 1µs to 100 years, in whole microseconds")
	}
	if l.Burst < 0 || l.Burst > maxTokens {
		bad("Burst", l.Burst, "must be 1 to 2^40, or 0 for Limit.Tokens (WithBurst takes 1 to 2^40)")
	}
	return errors.Join(all...)
}

// limitDecides reports whether a limit decides over t, and could admit it.
func (t *taking) limitDecides() bool {
	p := t.bucket.Policy()
	return p.Rule == local.ByLimit && t.cost <= p.Cap
}

// decideByRule decides if no limit applies, or if the limit can never admit so many tokens. It reports false if the
// limit decides.
func (t *taking) decideByRule(d *Decision) bool {
	l, b := t.limiter, t.bucket
	p := b.Policy()
	for ; p.Rule == local.Unresolved; p = b.Policy() {
		b.limiter().resolve(b, t.key)
	}
	if p.Rule == local.ByLimit && t.cost <= p.Cap {
		return false
	}
	t.clear()
	switch p.Rule {
	case local.Unlimited:
		l.admittedUnlimited.Add(t.cost)
		l.unlimited(d, t.key)
	case local.Blocked:
		b.CountRefused(t.cost)
		l.refuseBlocked(d, t.key)
	default:
		l.refuseForGood(d, b, t.key, ExceedsBurst)
		p.Owner.(*resolvedLimit).setLimit(d, 0)
	}
	return true
}

// unlimited writes the Decision of Unlimited.
func (l *Limiter) unlimited(d *Decision, key string) {
	*d = Decision{
		Allowed: true, Reason: Granted, Tier: Local, Policy: l.name, Key: key,
		Burst: math.MaxInt64, Remaining: math.MaxInt64,
	}
}

// refuseBlocked writes the Decision of Blocked.
func (l *Limiter) refuseBlocked(d *Decision, key string) {
	*d = Decision{Reason: ExceedsBurst, Tier: Local, Policy: l.name, Key: key}
}

// finish applies shadow mode and the hook to a Decision over n tokens that was made without a request.
func (l *Limiter) finish(d *Decision, n int64) {
	mode := l.mode.Load()
	if mode&modeShadow != 0 && !d.Allowed {
		l.tryOut(d, n)
	}
	if mode&modeTraced != 0 {
		l.group.trace.decision(*d)
	}
}

// asTried makes a peek at a policy that is only tried out say so, and tells the hook.
func (l *Limiter) asTried(d *Decision) {
	mode := l.mode.Load()
	if mode&modeShadow != 0 && !d.Allowed {
		d.shadow()
	}
	if mode&modeTraced != 0 {
		l.group.trace.decision(*d)
	}
}

// tryOut turns a refusal of n tokens into an admission, because the policy is only tried out.
func (l *Limiter) tryOut(d *Decision, n int64) {
	l.shadowed.Add(max(n, 0))
	l.addRequest(d.Key, kind(Shadowed), n, 1)
	d.shadow()
}

// shadow makes a refusal an admission. Nobody is to wait for it.
func (d *Decision) shadow() { d.Allowed, d.Reason, d.RetryAfter = true, Shadowed, 0 }
