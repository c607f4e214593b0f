package remote_test

import (
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// spent is what a model remembers of an admission.
type spent struct{ at, n int64 }

// counts reports what counts of a list of admissions at an instant in a limit of a call: the model
// of an algorithm, by the definition and not as the script does it.
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

// Direct takes are admitted exactly when the definition says so, by every limit and all or nothing,
// and a refused one is told exactly when it would be: at that instant it is admitted, a microsecond
// before it is not.
func TestWindowDefinition(t *testing.T) {
	eachKind(t, func(t *testing.T, k windowKind) {
		if k.algorithm == lua.TokenBuckets {
			t.Skip("see testdata/script/buckets.txt, and the adversary")
		}
		server := realEngine(t)
		refused, tried := 0, 0
		rapid.Check(t, func(t *rapid.T) {
			tried++
			draw := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
			var list []spent
			now := scriptStart
			c := k.call(draw, fmt.Sprintf("{model/%s/%d}", k.algorithm, tried), 0)
			seen := map[[2]int64]bool{}
			for _, l := range limitsOf(c) {
				seen[[2]int64{l.Period, l.Span}] = true
			}
			if len(seen) < len(limitsOf(c)) {
				return // an error, see TestBadArguments
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
