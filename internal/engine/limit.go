package engine

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/calendar"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Limit is a tiered.Limit, which says what its fields mean.
type Limit struct {
	Tokens    int64
	Per       time.Duration
	Burst     int64
	Precision time.Duration
	Calendar  calendar.Period
}

// The limits that are none.
var (
	Unlimited = Limit{Tokens: math.MaxInt64, Burst: math.MaxInt64}
	Blocked   = Limit{Tokens: math.MinInt64, Burst: math.MinInt64}
)

// MaxTokens is the most that a request may cost. Levels are doubles; beyond this, small refills
// would be lost.
const MaxTokens = lua.MostTokens

// Rule returns whether l is Unlimited, Blocked, or a limit.
func (l Limit) Rule() local.Rule {
	switch l {
	case Unlimited:
		return local.Unlimited
	case Blocked:
		return local.Blocked
	}
	return local.ByLimit
}

// Most returns the most tokens that l admits at once.
func (l Limit) Most() int64 {
	if l.Burst == 0 {
		return l.Tokens
	}
	return l.Burst
}

// Longest is Per, or the longest that a period of the calendar lasts.
func (l Limit) Longest() time.Duration {
	if l.Calendar.IsZero() {
		return l.Per
	}
	return l.Calendar.Longest()
}

// NanosPerToken returns the time in ns in which one token is refilled.
func (l Limit) NanosPerToken() float64 { return float64(l.Longest()) / float64(l.Tokens) }

// ResetAfter returns how long the refill of the missing tokens takes, or the longest duration.
func ResetAfter(missing int64, nanosPerToken float64) time.Duration {
	d := float64(missing) * nanosPerToken
	if d >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(d)
}
