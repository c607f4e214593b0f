package remote_test

import (
	"fmt"
	"maps"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// spent is what a model remembers of an admission.
type spent struct{ at, n int64 }

// counts reports what counts of a list of admissions at an instant in a limit of a call: the model of an algorithm,
// by the definition and not as the script does it.
func counts(list []spent, c lua.Call, l lua.Limit, now int64) int64 {
	div := func(x, y int64) int64 { // rounds down
		if x%y < 0 {
			return x/y - 1
		}
		return x / y
	}
	total := int64(0)
	for _, s := range list {
		live := false
		switch c.Algorithm {
		case lua.SlidingLog:
			live = s.at > now-l.Period
		case lua.FixedWindow:
			live = div(s.at-c.Phase, l.Period) == div(now-c.Phase, l.Period)
		case lua.SlidingWindow:
			live = div(s.at, l.Period) > div(now, l.Period)-l.Span
		}
		if live {
			total += s.n
		}
	}
	return total
}

func limitsOf(c lua.Call) []lua.Limit {
	return append([]lua.Limit{{Cap: c.Cap, Tokens: c.Tokens, Period: c.Period, Span: c.Span}}, c.Also...)
}

// sameDecision reports whether two answers say the same, but for the epoch and which limit.
func sameDecision(a, b answer) bool {
	x, y := a.reply, b.reply
	return a.err == b.err && x.Code == y.Code && x.Grant == y.Grant && x.Level == y.Level && x.Retry == y.Retry
}

// Direct takes are admitted exactly when the definition says so, by every limit and all or nothing, and a refused
// one is told exactly when it would be: at that instant it is admitted, a microsecond before it is not. Limits in
// any order say the same.
func TestWindowDefinition(t *testing.T) {
	eachKind(t, func(t *testing.T, k windowKind) {
		if k.algorithm == lua.TokenBuckets {
			t.Skip("see TestBucketsDefinition")
		}
		server := realEngine(t)
		refused, tried := 0, 0
		rapid.Check(t, func(t *rapid.T) {
			tried++
			draw := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
			var list []spent
			now := scriptStart
			c := k.call(draw, fmt.Sprintf("{model/%s/%d}", k.name, tried), 0)
			turned := c // the last limit first
			turned.Bucket += "turned"
			if all := limitsOf(c); len(all) > 1 {
				last := all[len(all)-1]
				turned.Cap, turned.Period, turned.Span = last.Cap, last.Period, last.Span
				turned.Also = all[:len(all)-1]
				seen := map[[2]int64]bool{}
				for _, l := range all {
					seen[[2]int64{l.Period, l.Span}] = true
				}
				if len(seen) < len(all) {
					return // an error, see TestWindowArguments
				}
			}
			memory := memoryEngine()
			fits := func(at, n int64) bool {
				for _, l := range limitsOf(c) {
					if counts(list, c, l, at)+n > l.Cap {
						return false
					}
				}
				return true
			}
			t.Repeat(map[string]func(*rapid.T){"take": func(t *rapid.T) {
				now += choose(draw, 1, 1, c.Period/3, c.Period/7+1, c.Period-1, c.Period, 2*c.Period+3)
				n := choose(draw, 1, 1, 2, c.Cap)
				before := memory.memory.Fields(c.Bucket)
				a := memory.at(t, now, take(c, n))
				// In Redis nothing has expired: what is stored and old must change nothing.
				if got := server.at(t, now, take(c, n)); !sameDecision(got, a) {
					t.Fatalf("%v, redis %v", a, got)
				}
				if b := memory.at(t, now, take(turned, n)); !sameDecision(a, b) {
					t.Fatalf("%v, limits in another order %v", a, b)
				}
				for _, l := range limitsOf(c) {
					if n > l.Cap {
						if a.reply.Code != lua.Never {
							t.Fatalf("%d of %d: %v", n, l.Cap, a)
						}
						return
					}
				}
				if fits(now, n) != (a.reply.Code == lua.Granted) {
					t.Fatalf("at %d, %d of %+v after %v: %v", now, n, c, list, a)
				}
				if a.reply.Code == lua.Granted {
					if a.reply.Stamp != now {
						t.Fatalf("stamp %d at %d", a.reply.Stamp, now)
					}
					list = append(list, spent{now, n})
					return
				}
				refused++
				if after := memory.memory.Fields(c.Bucket); !maps.Equal(before, after) {
					t.Fatalf("a refusal changed\n%v to\n%v", before, after)
				}
				if at := now + a.reply.Retry; !fits(at, n) || fits(at-1, n) {
					t.Fatalf("at %d, %d of %+v after %v: retry %d is not exact", now, n, c, list, a.reply.Retry)
				}
			}})
		})
		if refused < tried {
			t.Errorf("%d refused in %d histories", refused, tried)
		}
	})
}

// Several token buckets admit a direct take exactly when each has the tokens, by exact fractions, and debit all or
// none.
func TestBucketsDefinition(t *testing.T) {
	server := realEngine(t)
	var kind windowKind
	for _, k := range windowKinds {
		if k.algorithm == lua.TokenBuckets {
			kind = k
		}
	}
	refused, tried := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		tried++
		draw := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
		c := kind.call(draw, fmt.Sprintf("{buckets/%d}", tried), 0)
		limits := limitsOf(c)
		levels := make([]*big.Rat, len(limits))
		for i, l := range limits {
			levels[i] = big.NewRat(l.Cap, 1)
		}
		now, memory := scriptStart, memoryEngine()
		after := func(elapsed, n int64) (fits bool) { // with a rounding error's room
			for i, l := range limits {
				level := new(big.Rat).Add(levels[i],
					new(big.Rat).Mul(big.NewRat(elapsed, l.Period), big.NewRat(l.Tokens, 1)))
				level.Add(level, big.NewRat(1, 1_000_000_000))
				if level.Cmp(big.NewRat(n, 1)) < 0 {
					return false
				}
			}
			return true
		}
		t.Repeat(map[string]func(*rapid.T){"take": func(t *rapid.T) {
			step := choose(draw, 1, 1, c.Period/3, c.Period/7+1, c.Period, 2*c.Period+3)
			now += step
			for i, l := range limits {
				levels[i].Add(levels[i], new(big.Rat).Mul(big.NewRat(step, l.Period), big.NewRat(l.Tokens, 1)))
				if full := big.NewRat(l.Cap, 1); levels[i].Cmp(full) > 0 {
					levels[i] = full
				}
			}
			n := choose(draw, 1, 1, 2, c.Cap)
			before := memory.memory.Fields(c.Bucket)
			a := memory.at(t, now, take(c, n))
			if got := server.at(t, now, take(c, n)); !sameDecision(got, a) {
				t.Fatalf("%v, redis %v", a, got)
			}
			if a.reply.Code == lua.Never {
				return
			}
			if after(0, n) != (a.reply.Code == lua.Granted) {
				t.Fatalf("%d of %+v at %v: %v", n, c, levels, a)
			}
			if a.reply.Code == lua.Granted {
				for i := range levels {
					levels[i].Sub(levels[i], big.NewRat(n, 1))
				}
				return
			}
			refused++
			if left := memory.memory.Fields(c.Bucket); !maps.Equal(before, left) {
				t.Fatalf("a refusal changed\n%v to\n%v", before, left)
			}
			if !after(a.reply.Retry, n) || a.reply.Retry > 10 && after(a.reply.Retry-10, n) {
				t.Fatalf("%d of %+v at %v: retry %d is not exact", n, c, levels, a.reply.Retry)
			}
		}})
	})
	if refused < tried {
		t.Errorf("%d refused in %d histories", refused, tried)
	}
}
