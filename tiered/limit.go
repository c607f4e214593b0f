package tiered

import (
	"errors"
	"fmt"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Limit is Tokens per Per, with bursts of up to Burst: see [Algorithm]. The zero Limit is an error
// in a Policy, and means Policy.Limit if PerKey returns it.
type Limit struct {
	Tokens int64         // 1 … 2⁴⁰; up to 100 000 for a SlidingLog
	Per    time.Duration // 1 µs … 100 years, a whole number of µs
	Burst  int64         // 1 … 2⁴⁰; 0 means Tokens. Only for a TokenBucket

	// Precision is the length of the blocks in which a SlidingWindow counts: 1 µs … Per, a whole
	// number of µs, and at most 511 blocks in Per. 0 means Per/60 if Per is at least a minute, and
	// otherwise Per/40. A token comes back up to two blocks late.
	Precision time.Duration
}

// PerSecond returns n tokens per second, with bursts of n.
func PerSecond(n int64) Limit { return Limit{Tokens: n, Per: time.Second} }

// PerMinute returns n tokens per minute, with bursts of n.
func PerMinute(n int64) Limit { return Limit{Tokens: n, Per: time.Minute} }

// PerHour returns n tokens per hour, with bursts of n.
func PerHour(n int64) Limit { return Limit{Tokens: n, Per: time.Hour} }

// PerDay returns n tokens per 24 hours, with bursts of n.
func PerDay(n int64) Limit { return Limit{Tokens: n, Per: 24 * time.Hour} }

// Per returns n tokens, 1 … 2⁴⁰, per d, 1 µs … 100 years, with bursts of n.
func Per(n int64, d time.Duration) Limit { return Limit{Tokens: n, Per: d} }

// Every returns one token per d, evenly spaced, with a burst of 1.
func Every(d time.Duration) Limit { return Limit{Tokens: 1, Per: d} }

var unlimited, blocked = Limit(engine.Unlimited), Limit(engine.Blocked)

// Unlimited returns a limit that admits everything and needs no Redis. Its Decisions have a Burst
// and a Remaining of math.MaxInt64.
func Unlimited() Limit { return unlimited }

// Blocked returns a limit that refuses everything with Reason ExceedsBurst, because its burst is 0,
// and needs no Redis.
func Blocked() Limit { return blocked }

// rule returns whether l is Unlimited, Blocked, or a limit.
func (l Limit) rule() local.Rule { return engine.Limit(l).Rule() }

// WithBurst returns l with bursts of up to n tokens, 1 … 2⁴⁰.
func (l Limit) WithBurst(n int64) Limit {
	l.Burst = n
	if n == 0 {
		l.Burst = -1 // a burst of 0 would admit nothing: an error, not the default
	}
	return l
}

func (l Limit) burst() int64 { return engine.Limit(l).Most() }

// nanosPerToken returns the time in ns in which one token is refilled.
func (l Limit) nanosPerToken() float64 { return engine.Limit(l).NanosPerToken() }

const (
	maxTokens = engine.MaxTokens // levels are doubles; beyond this, small refills would be lost
	maxPer    = 100 * 365 * 24 * time.Hour
)

func validTokens(n int64) bool { return n >= 1 && n <= maxTokens }

func validPeriod(d time.Duration) bool {
	return d >= time.Microsecond && d <= maxPer && d%time.Microsecond == 0
}

// faults are what is wrong with the fields of something, each with field, value and rule.
type faults struct {
	of  string // as in Policy
	all []error
}

func (f *faults) bad(field string, value any, rule string) {
	f.all = append(f.all, fmt.Errorf("tiered: %s.%s is %v: %s", f.of, field, value, rule))
}

func (f *faults) err() error { return errors.Join(f.all...) }

// validate reports all problems of l, each with field, value and rule.
func (l Limit) validate(name string) error {
	if l.rule() != local.ByLimit {
		return nil
	}
	if l == (Limit{}) {
		return fmt.Errorf("tiered: %s is zero: must be set, as in tiered.PerSecond(100)", name)
	}
	f := faults{of: name}
	if !validTokens(l.Tokens) {
		f.bad("Tokens", l.Tokens, "must be 1 to 2^40")
	}
	if !validPeriod(l.Per) {
		f.bad("Per", l.Per, "must be 1µs to 100 years, in whole microseconds")
	}
	if l.Burst < 0 || l.Burst > maxTokens {
		f.bad("Burst", l.Burst, "must be 1 to 2^40, or 0 for Limit.Tokens (WithBurst takes 1 to 2^40)")
	}
	return f.err()
}
