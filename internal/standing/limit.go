package standing

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// eighths is the number of parts of a limit of which the standing shares have some: 1 to
// lua.MostShared. With one, a key that always meets the same process has at least 7/8 of its limit,
// and a key below r/8N costs no call in N processes.
const eighths = 8

// MinBurst returns the smallest burst that is worth splitting. The standing shares of a smaller one
// hold a single token, or none.
func MinBurst(parts int64) int64 { return (2*eighths + parts - 1) / parts }

// unit is that of what places say, and of the time of a token.
const unit = 64 * time.Nanosecond

// longestFill bounds the time in which a limit refills, and that of its debt: 1.1 years. Then what
// a place says does not overflow before nine years of virtual time are over.
const longestFill = 1 << 55

// Rate is a burst, and tokens that are refilled per period.
type Rate struct {
	Burst, Tokens int64
	Per           time.Duration
}

// Limit is what the standing shares have of one limit. It never changes.
type Limit struct {
	size  int64         // R: tokens of all shares together
	debt  int64         // tokens below zero that all shares of a key together may be charged to: see Owing
	token time.Duration // virtual time in which the shares together get a token: 8/r, rounded up to units
	fill  time.Duration // size·token: virtual ns in which they fill
	since time.Duration // virtual time at which the limit began; every share of it was empty then

	// window is the longest of the limit's windows, or 0 for a bucket. A share of a window has all
	// of its tokens when the window begins. Then debt, token, fill and since are 0.
	window time.Duration

	tag word // of the limits of a key: what they used counts for no others

	place, others uint64 // which of its key's places is this limit's, and the bits that tell the key's places apart
}

// Limits are what the standing shares have of the limits of a key: one or several. A request takes
// its tokens from the share of each, or from none.
type Limits []Limit

// Split splits the only limit of a key: the standing shares get so many eighths of its burst and of
// its rate. It returns the part of the standing shares and the part of Redis, or an error that says
// why the limit cannot be split.
//
// A key may have another limit at any time. Then Redis goes by the larger burst and the larger rate
// of both, and the shares by either. So that the sums hold, the part of Redis and that of the
// shares both rise with the limit: an eighth of a burst below 8 is no token, so the burst stays
// whole, but its rate is split.
func Split(r Rate, parts int64) (Limit, Rate, error) {
	l, rest := splitBurst(r, parts)
	of := int64(eighths)
	for ; parts%2 == 0; parts /= 2 {
		of /= 2
	}
	rest.Tokens = r.Tokens / of * (of - parts)
	if r.Tokens%of != 0 && r.Tokens*(of-parts) <= lua.MostTokens {
		if r.Per.Microseconds() > lua.LongestPeriod/of {
			return Limit{}, Rate{}, fmt.Errorf("it refills %d tokens per %v: a period above %v needs a multiple of %d tokens",
				r.Tokens, r.Per, lua.LongestPeriod/time.Duration(of)*time.Microsecond, of)
		}
		rest.Tokens, rest.Per = r.Tokens*(of-parts), r.Per*time.Duration(of)
	}
	return l.refilled(rest, uint64(r.Per), uint64(of), uint64(r.Tokens*parts))
}

// SplitInPeriod splits one of several limits of a key. Redis tells these apart by their periods, so
// its part keeps the period. Both parts are whole tokens per period, and the shares have at most
// so many eighths.
func SplitInPeriod(r Rate, parts int64) (Limit, Rate, error) {
	l, rest := splitBurst(r, parts)
	shared := r.Tokens * parts / eighths
	if shared == 0 {
		return Limit{}, Rate{}, fmt.Errorf("it refills %d tokens per period: must be at least %d of each of several limits",
			r.Tokens, (eighths+parts-1)/parts)
	}
	rest.Tokens = r.Tokens - shared
	return l.refilled(rest, uint64(r.Per), 1, uint64(shared))
}

// Owing returns the limits of shares that may go below zero by their eighths of a debt, which is
// that of a whole key. Redis has the rest of it.
func (l Limit) Owing(debt, parts int64) Limit {
	l.debt = min(debt*parts/eighths, int64(longestFill/l.token))
	return l
}

// RestOfDebt returns the part of a debt that Redis has.
func RestOfDebt(debt, parts int64) int64 { return debt - debt*parts/eighths }

// Tokens returns how many tokens of a burst all shares of a key together have.
func Tokens(burst, parts int64) int64 { return burst * parts / eighths }

// splitBurst splits the burst.
func splitBurst(r Rate, parts int64) (l Limit, rest Rate) {
	l.size = Tokens(r.Burst, parts)
	return l, Rate{r.Burst - l.size, r.Tokens, r.Per}
}

// refilled returns l with the rate of a token in per·times/tokens ns.
func (l Limit) refilled(rest Rate, per, times, tokens uint64) (Limit, Rate, error) {
	tooLong := errors.New("it takes more than a year to refill")
	hi, lo := bits.Mul64(per, times)
	if hi >= tokens {
		return Limit{}, Rate{}, tooLong
	}
	token, remainder := bits.Div64(hi, lo, tokens)
	if remainder > 0 {
		token++
	}
	if token > longestFill {
		return Limit{}, Rate{}, tooLong
	}
	token = uint64(inUnits(time.Duration(token)))
	if hi, lo = bits.Mul64(token, uint64(max(l.size, 1))); hi > 0 || lo > longestFill {
		return Limit{}, Rate{}, tooLong
	}
	l.token, l.fill = time.Duration(token), time.Duration(token)*time.Duration(l.size)
	return l, rest, nil
}

// inUnits rounds a time ≥ 0 up to whole units.
func inUnits(d time.Duration) time.Duration { return (d + unit - 1) &^ (unit - 1) }

// Are reports whether l are the same parts of the same limits. Then what a key used of l counts for
// them too.
func (l Limits) Are(parts []Limit) bool {
	return slices.EqualFunc(l, parts, func(x, y Limit) bool {
		return x.size == y.size && x.debt == y.debt && x.token == y.token && x.fill == y.fill && x.window == y.window
	})
}

// Size returns the tokens of all shares of a key together: of several limits, those of the
// smallest.
func (l Limits) Size() int64 {
	size := l[0].size
	for i := range l {
		size = min(size, l[i].size)
	}
	return size
}
