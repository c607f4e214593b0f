package ideal

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func (a wide) big() *big.Int {
	v := new(big.Int).Lsh(big.NewInt(a.hi), 64)
	return v.Add(v, new(big.Int).SetUint64(a.lo))
}

func TestWideAgainstBig(t *testing.T) {
	number := rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, math.MaxInt64))
	rapid.Check(t, func(t *rapid.T) {
		// Products, and differences of them: near zero and of both signs.
		draw := func(name string) wide {
			v := product(number.Draw(t, name+"1"), number.Draw(t, name+"2"))
			return v.minus(product(number.Draw(t, name+"3"), number.Draw(t, name+"4")))
		}
		a, b := draw("a"), draw("b")
		if got, want := a.plus(b).big(), new(big.Int).Add(a.big(), b.big()); got.Cmp(want) != 0 {
			t.Fatalf("%v + %v = %v", a.big(), b.big(), got)
		}
		if got, want := a.minus(b).big(), new(big.Int).Sub(a.big(), b.big()); got.Cmp(want) != 0 {
			t.Fatalf("%v − %v = %v", a.big(), b.big(), got)
		}
		if a.less(b) != (a.big().Cmp(b.big()) < 0) {
			t.Fatalf("%v < %v is %v", a.big(), b.big(), a.less(b))
		}
		want, _ := new(big.Float).SetInt(a.big()).Float64()
		if got := a.float(); math.Abs(got-want) > 1e-15*math.Abs(want) {
			t.Fatalf("float of %v is %v, want %v", a.big(), got, want)
		}
		x, y := number.Draw(t, "x"), number.Draw(t, "y")
		if got, want := product(x, y).big(), new(big.Int).Mul(big.NewInt(x), big.NewInt(y)); got.Cmp(want) != 0 {
			t.Fatalf("%d · %d = %v", x, y, got)
		}
	})
}
