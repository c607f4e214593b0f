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

// decideByRule decides if no limit applies, or if the limit can never admit so many tokens. It reports false if the
// limit decides.
func (t *taking) decideByRule(now time.Duration) (o outcome, decided bool) {
	b := t.bucket
	p := b.Policy()
	for ; p.Rule == local.Unresolved; p = b.Policy() {
		b.limiter().resolve(b, t.key)
	}
	switch {
	case p.Rule == local.Unlimited:
		t.limiter.admittedUnlimited.Add(t.cost)
	case p.Rule == local.Blocked:
		b.CountRefused(t.cost)
	case t.cost <= p.Cap:
		return o, false
	}
	t.clear()
	return b.byRule(now), true
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
