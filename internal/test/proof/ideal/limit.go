package ideal

import (
	"fmt"
	"time"
)

// limit is a token bucket's, in units of token/period.
type limit struct {
	tokens int64 // units that one nanosecond refills
	period int64 // units in one token: the period's nanoseconds
	burst  wide  // units in a full bucket
}

func newLimit(tokens int64, per time.Duration, burst int64) limit {
	if tokens < 0 || per <= 0 || burst < 0 {
		panic(fmt.Sprintf("ideal: %d tokens per %v with a burst of %d is no limit", tokens, per, burst))
	}
	return limit{tokens: tokens, period: int64(per), burst: product(burst, int64(per))}
}

// cost is the units in n tokens.
func (l limit) cost(n int64) wide {
	if n < 0 {
		panic(fmt.Sprintf("ideal: %d tokens", n))
	}
	return product(n, l.period)
}

// refill is the units that flow in from one time to another.
func (l limit) refill(from, to int64) wide {
	if to < from || to-from < 0 { // the second: further apart than 2⁶³ ns, 292 years
		panic(fmt.Sprintf("ideal: time goes from %d ns to %d ns", from, to))
	}
	return product(l.tokens, to-from)
}

// excess reports an interval's tokens against the limit.
func (l limit) excess(from, to, tokens int64) Excess {
	flow := l.refill(from, to)
	return Excess{
		From:   from,
		To:     to,
		Tokens: tokens,
		Bound:  l.burst.plus(flow).float() / float64(l.period),
		Over:   l.cost(tokens).minus(flow).minus(l.burst).float() / float64(l.period),
	}
}

// Excess is an interval and how its admissions compare with burst + rate·length.
type Excess struct {
	From, To int64   // the interval, ns
	Tokens   int64   // admitted in it
	Bound    float64 // what it may admit: burst + rate·(To−From)
	Over     float64 // Tokens − Bound; negative is slack. Its sign is exact, 0 is exactly at the bound.
}

// String is one line for the message of a failed test.
func (e Excess) String() string {
	return fmt.Sprintf("%d tokens in %v (from %v to %v), bound %.6f, over by %+.6g",
		e.Tokens, time.Duration(e.To-e.From), time.Duration(e.From), time.Duration(e.To), e.Bound, e.Over)
}
