package ideal

import (
	"math"
	"math/bits"
)

// wide is a signed integer of 128 bits, two's complement.
//
// 64 would not do: 10⁶ tokens over a day's worth of nanoseconds are 2⁶⁶ units. The product of two
// int64 is at most 2¹²⁶, which leaves room for the sum or the difference of two.
type wide struct {
	hi int64
	lo uint64
}

// least lies below every value that a stream of admissions can give, even when the tokens of a
// stream are added to it.
var least = wide{hi: math.MinInt64}

// product of two numbers that are not negative.
func product(a, b int64) wide {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return wide{int64(hi), lo}
}

func (a wide) plus(b wide) wide {
	lo, carry := bits.Add64(a.lo, b.lo, 0)
	hi, _ := bits.Add64(uint64(a.hi), uint64(b.hi), carry)
	return wide{int64(hi), lo}
}

func (a wide) minus(b wide) wide {
	lo, borrow := bits.Sub64(a.lo, b.lo, 0)
	hi, _ := bits.Sub64(uint64(a.hi), uint64(b.hi), borrow)
	return wide{int64(hi), lo}
}

func (a wide) less(b wide) bool {
	return a.hi < b.hi || a.hi == b.hi && a.lo < b.lo
}

// float is a to 53 bits, of the same sign: a negative number goes by its opposite, else small ones
// would vanish between two large halves.
func (a wide) float() float64 {
	if a.hi < 0 {
		return -wide{}.minus(a).float()
	}
	return float64(a.hi)*(1<<64) + float64(a.lo)
}
