package tiered

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/calendar"
	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
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

	// Calendar, if it is not zero, makes Tokens the quota of each day, week, month, quarter or year
	// of a time zone, instead of a Per, which is 0 then. Only for a FixedWindow. See [PerMonth].
	Calendar Calendar

	// Also are further limits on the same key, which [Limit.And] adds. The fields above are those of
	// the first.
	Also Further
}

// Further are the limits that a Limit has beside its own fields. They can be compared, as a Limit
// can. [Limit.And] makes them, and [Limit.Each] reads them.
type Further = engine.Further

// Calendar says which periods of the calendar are the windows of a FixedWindow. The methods of a
// Limit set it: [Limit.In], [Limit.From] and [Limit.FromMonth].
type Calendar = calendar.Period

// Unit is a period of the calendar.
type Unit = calendar.Unit

// The units.
const (
	Day     = calendar.Day
	Week    = calendar.Week
	Month   = calendar.Month
	Quarter = calendar.Quarter
	Year    = calendar.Year
)

// PerSecond returns n tokens per second, with bursts of n.
func PerSecond(n int64) Limit { return Limit{Tokens: n, Per: time.Second} }

// PerMinute returns n tokens per minute, with bursts of n.
func PerMinute(n int64) Limit { return Limit{Tokens: n, Per: time.Minute} }

// PerHour returns n tokens per hour, with bursts of n.
func PerHour(n int64) Limit { return Limit{Tokens: n, Per: time.Hour} }

// PerDay returns n tokens per 24 hours, with bursts of n.
func PerDay(n int64) Limit { return Limit{Tokens: n, Per: 24 * time.Hour} }

// PerWeek returns n tokens per 7 · 24 hours, with bursts of n.
func PerWeek(n int64) Limit { return Limit{Tokens: n, Per: 7 * 24 * time.Hour} }

// PerMonth returns a quota of n tokens for each month of the calendar, for a FixedWindow. It begins
// at midnight of day 1 in UTC, unless In and From say otherwise:
// PerMonth(10_000).In("Europe/Berlin").From(17) begins on each 17th at midnight in Berlin. With
// Policy.PerKey each customer has a billing day of its own. A month is as long as it is, 28 to 31
// days and an hour less or more if the clocks change. Redis' clock says when it is over.
func PerMonth(n int64) Limit { return Limit{Tokens: n, Calendar: Calendar{Unit: Month}} }

// PerQuarter is [PerMonth] for three months, from January.
func PerQuarter(n int64) Limit { return Limit{Tokens: n, Calendar: Calendar{Unit: Quarter}} }

// PerYear is [PerMonth] for a year.
func PerYear(n int64) Limit { return Limit{Tokens: n, Calendar: Calendar{Unit: Year}} }

// In returns l with the periods of the calendar of a time zone, by its IANA name such as
// "Europe/Berlin" or "UTC". Of PerDay and PerWeek it makes days and weeks of the calendar, from
// midnight to midnight; a week begins on Monday. The machine must have the zone's data, or the
// program must import time/tzdata.
func (l Limit) In(zone string) Limit {
	l = l.ofCalendar()
	l.Calendar.Zone = zone
	l.Calendar = l.Calendar.Canonical()
	return l
}

// From returns l with months, quarters or years of the calendar that begin on a day of the month, 1
// … 31, which is the last day of a shorter month; or with weeks that begin on a day of the week,
// from 1 for Monday to 7 for Sunday.
func (l Limit) From(day int) Limit {
	l = l.ofCalendar()
	if l.Calendar.Day = int16(min(max(day, -1), math.MaxInt16)); day == 0 {
		l.Calendar.Day = -1 // there is no day 0: an error, not the default
	}
	l.Calendar = l.Calendar.Canonical()
	return l
}

// FromMonth returns l with years of the calendar that begin in a month, on a day of it, 1 … 31; or
// with quarters of which one does.
func (l Limit) FromMonth(month time.Month, day int) Limit {
	l = l.From(day)
	if l.Calendar.Month = int8(min(max(month, -1), math.MaxInt8)); month == 0 {
		l.Calendar.Month = -1
	}
	l.Calendar = l.Calendar.Canonical()
	return l
}

// ofCalendar returns l with a period of the calendar instead of a day or a week of so many hours.
func (l Limit) ofCalendar() Limit {
	switch {
	case !l.Calendar.IsZero():
	case l.Per == PerDay(1).Per:
		l.Per, l.Calendar.Unit = 0, Day
	case l.Per == PerWeek(1).Per:
		l.Per, l.Calendar.Unit = 0, Week
	}
	return l
}

// And returns l with further limits on the same key, up to eight in all. A request needs tokens of
// each:
//
//	tiered.PerSecond(10).WithBurst(20).And(tiered.PerHour(1000))
//
// They are for a TokenBucket, each with a different Per, or for a SlidingWindow, and not Unlimited
// or Blocked. And comes last: [Limit.WithBurst], In and From change the first limit of the result.
func (l Limit) And(more ...Limit) Limit {
	all := make([]engine.Limit, len(more))
	for i, m := range more {
		all[i] = engine.Limit(m)
	}
	return Limit(engine.Limit(l).And(all...))
}

// Each returns the limits that [Limit.And] joined, in their order: l alone if there are none.
func (l Limit) Each() []Limit {
	each := engine.Limit(l).Each()
	all := make([]Limit, len(each))
	for i, x := range each {
		all[i] = Limit(x)
	}
	return all
}

// several reports whether l is more than one limit.
func (l Limit) several() bool { return l.Also != Further{} }

// longest returns Per, or the longest that a period of the calendar lasts.
func (l Limit) longest() time.Duration { return engine.Limit(l).Longest() }

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
		l.Burst = burstOfNone
	}
	return l
}

// burstOfNone is the Burst by WithBurst(0), which is an error: it would admit nothing, and a zero
// Burst is the default.
const burstOfNone = math.MinInt64 / 3

// saidBurst is the Burst as the user gave it.
func (l Limit) saidBurst() int64 {
	if l.Burst == burstOfNone {
		return 0
	}
	return l.Burst
}

func (l Limit) burst() int64 { return engine.Limit(l).Most() }

// nanosPerToken returns the time in ns in which one token is refilled.
func (l Limit) nanosPerToken() float64 { return engine.Limit(l).NanosPerToken() }

const (
	maxLimits = lua.MostLimits   // of a key
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

// limitField is the field of the i-th of several limits, from 0.
func limitField(name string, i int) string {
	if i == 0 {
		return name
	}
	return fmt.Sprintf("%s.Also[%d]", name, i-1)
}

// validate reports all problems of l, each with field, value and rule.
func (l Limit) validate(name string) error {
	if l.several() {
		return l.validateEach(name)
	}
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
	switch {
	case l.Calendar.IsZero() && !validPeriod(l.Per):
		f.bad("Per", l.Per, "must be 1µs to 100 years, in whole microseconds")
	case !l.Calendar.IsZero() && l.Per != 0:
		f.bad("Per", l.Per, "must be 0 beside a Calendar, which says when the windows begin (In and From are for days, weeks, "+
			"months, quarters and years)")
	case !l.Calendar.IsZero():
		l.Calendar.Check(func(field string, value any, rule string) { f.bad("Calendar."+field, value, rule) })
	}
	if l.Burst < 0 || l.Burst > maxTokens {
		f.bad("Burst", l.saidBurst(), "must be 1 to 2^40; leave it out for that of Limit.Tokens, and use Blocked to refuse everything")
	}
	return f.err()
}

// validateEach is validate of several limits.
func (l Limit) validateEach(name string) error {
	var all []error
	if n := engine.Limit(l).Len(); n > maxLimits {
		all = append(all, fmt.Errorf("tiered: %s.Also is %d limits: must be at most %d", name, n-1, maxLimits-1))
	}
	for i, one := range l.Each() {
		if field := limitField(name, i); one.rule() != local.ByLimit {
			all = append(all, fmt.Errorf("tiered: %s is %v: must be a limit, because it is one of several", field, one))
		} else if err := one.validate(field); err != nil {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}
