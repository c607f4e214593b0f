package ideal_test

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/ideal"
)

// bruteNet is brute of what was admitted less what may have come back.
func bruteNet(as []ideal.Admission, cs []ideal.Credit, l limit) *big.Int {
	worst := l.units(0, 0, 0)
	for _, a := range as {
		for _, b := range as {
			if from, to := a.Before, b.After; from <= to {
				n := inside(as, from, to)
				for _, c := range cs {
					if c.From <= to && c.To >= from {
						n -= c.Tokens
					}
				}
				if u := l.units(n, from, to); u.Cmp(worst) > 0 {
					worst = u
				}
			}
		}
	}
	return worst
}

// The worst interval of what was admitted and came back is what looking at all of them finds.
func TestWorstNetAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := limits.Draw(t, "limit")
		instant := rapid.Map(rapid.Int64Range(0, 12), func(i int64) int64 { return i * l.pace() / 2 })
		between := func(t *rapid.T) (from, to int64) {
			a, b := instant.Draw(t, "a"), instant.Draw(t, "b")
			return min(a, b), max(a, b)
		}
		as := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) ideal.Admission {
			from, to := between(t)
			return ideal.Admission{Before: from, After: to, Tokens: rapid.Int64Range(0, 5).Draw(t, "n")}
		}), 0, 12).Draw(t, "admissions")
		cs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) ideal.Credit {
			from, to := between(t)
			return ideal.Credit{From: from, To: to, Tokens: rapid.Int64Range(0, 5).Draw(t, "n")}
		}), 0, 6).Draw(t, "credits")
		got := ideal.WorstNet(as, cs, l.tokens, l.per, l.burst)
		want := bruteNet(as, cs, l)
		if u := l.units(got.Tokens, got.From, got.To); u.Cmp(want) != 0 || got.Over > 0 != (want.Sign() > 0) {
			t.Fatalf("%v, of %v less %v; the worst is %v units", got, as, cs, want)
		}
	})
}
