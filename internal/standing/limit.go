package standing

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// part is which part of a limit the standing shares have: one in part of its burst and of its rate. With an eighth, a key
// that always meets the same process has at least 7/8 of its limit. A key below r/8N costs no call in N processes.
const part = 8

// MinBurst is the smallest burst that is split. The standing shares of a smaller one would hold a single token.
const MinBurst = 2 * part

// longestFill bounds the time in which a limit refills, so that sums of two such times do not overflow.
const longestFill = 1 << 61

// Rate is a burst, and tokens that are refilled per period.
type Rate struct {
	Burst, Tokens int64
	Per           time.Duration
}

// Limit is what the standing shares have of one limit. It never changes.
type Limit struct {
	size  int64         // R: tokens of all shares together
	token time.Duration // virtual ns in which the shares together get a token: 8/r, rounded up
	fill  time.Duration // size·token: virtual ns in which they fill
	since time.Duration // virtual time at which the limit began; every share of it was empty then
}

// Split splits a limit. It returns the part of the standing shares and the part of Redis, or an error that says why the
// limit cannot be split.
func Split(r Rate) (Limit, Rate, error) {
	if r.Burst < MinBurst {
		return Limit{}, Rate{}, fmt.Errorf("its burst is %d: must be at least %d", r.Burst, MinBurst)
	}
	l := Limit{size: r.Burst / part}
	rest := Rate{r.Burst - l.size, r.Tokens / part * (part - 1), r.Per}
	if r.Tokens%part != 0 && r.Tokens*(part-1) <= lua.MostTokens {
		if r.Per.Microseconds() > lua.LongestPeriod/part {
			return Limit{}, Rate{}, fmt.Errorf("it refills %d tokens per %v: a period above %v needs a multiple of %d tokens",
				r.Tokens, r.Per, lua.LongestPeriod/part*time.Microsecond, part)
		}
		rest.Tokens, rest.Per = r.Tokens*(part-1), r.Per*part
	}
	hi, lo := bits.Mul64(uint64(r.Per), part)
	token, remainder := bits.Div64(hi, lo, uint64(r.Tokens))
	if remainder > 0 {
		token++
	}
	if hi, lo = bits.Mul64(token, uint64(l.size)); hi > 0 || lo > longestFill {
		return Limit{}, Rate{}, errors.New("it takes more than 73 years to refill")
	}
	l.token, l.fill = time.Duration(token), time.Duration(lo)
	return l, rest, nil
}

// Size returns the tokens of all shares of a key together.
func (l *Limit) Size() int64 { return l.size }
