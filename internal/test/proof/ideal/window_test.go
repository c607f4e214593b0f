package ideal_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
)

// counter is what [ideal.Window] and [ideal.Log] are.
type counter interface {
	limiter
	Has(at, n int64) bool
	Admit(asked, decided, n int64)
	Over() float64
	Forget()
}

// asked is a request and, if it was admitted, what it took.
type asked struct{ at, decided, n int64 }

// within counts what a stream has in an interval, both ends included.
func within(all []asked, from, to int64) (sum int64) {
	for _, a := range all {
		if a.at >= from && a.decided <= to {
			sum += a.n
		}
	}
	return sum
}

// The windows of the test have different lengths, as months have.
func windowOf(at int64) (from, to int64) {
	from = at / 100 * 100
	if at%100 < 40 {
		return from, from + 40
	}
	return from + 40, from + 100
}

// What is taken is never too much, a refusal would have been, and who admits at will is told the
// worst window or interval, by counting anew.
func TestWindowAndLogAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.Int64Range(0, 12).Draw(t, "tokens")
		sliding := rapid.Bool().Draw(t, "sliding")
		const length = 50
		make := func() counter {
			if sliding {
				return ideal.NewLog(tokens, length*time.Nanosecond)
			}
			return ideal.NewWindow(tokens, windowOf)
		}
		used := func(all []asked, at int64) int64 { // of what a request at a time competes with
			from := at - length + 1
			if !sliding {
				from, _ = windowOf(at)
			}
			return within(all, from, at)
		}
		own, judge := make(), make()
		var took, admitted []asked
		worst, now := int64(-1), int64(0)
		for range rapid.IntRange(0, 40).Draw(t, "requests") {
			now += rapid.Int64Range(0, 30).Draw(t, "later")
			a := asked{now - rapid.Int64Range(0, 20).Draw(t, "waited"), now, rapid.Int64Range(0, 6).Draw(t, "n")}
			has := used(took, now)+a.n <= tokens
			if own.Has(now, a.n) != has || own.Take(now, a.n) != has {
				t.Fatalf("%d of %d are used at %d: has %d: %v, want %v", used(took, now), tokens, now, a.n, !has, has)
			}
			if has {
				took = append(took, asked{now, now, a.n})
			}
			judge.Admit(a.at, a.decided, a.n)
			admitted = append(admitted, a)
			if u := used(admitted, now); a.n > 0 && used([]asked{a}, now) > 0 {
				worst = max(worst, u-tokens)
			}
		}
		if worst >= 0 && judge.Over() != float64(worst) || worst < 0 && judge.Over() > 0 {
			t.Fatalf("over by %v, want %d", judge.Over(), worst)
		}
		judge.Forget()
		if judge.Over() > 0 {
			t.Fatal("not forgotten")
		}
	})
}

// What a limit lets through in a time, beside a burst.
func TestAllows(t *testing.T) {
	const s = int64(time.Second)
	bucket := ideal.NewBucket(10, time.Second, 30)
	log := ideal.NewLog(30, 3*time.Second)
	window := ideal.NewWindow(50, func(at int64) (int64, int64) { return at / (10 * s) * 10 * s, (at/(10*s) + 1) * 10 * s })
	for _, c := range []limiter{bucket, log, window} {
		c.Take(s, 20)
	}
	for _, c := range []struct {
		what     string
		of       limiter
		from, to int64
		burst    int64
		want     float64
	}{
		{"a bucket's rate", bucket, 1, 2, 30, 10},
		{"and what it has more than the burst", bucket, 1, 2, 4, 16},
		{"which is more after a time", bucket, 2, 3, 4, 26},
		{"but not more than the bucket holds", bucket, 9, 10, 4, 36},
		{"a sliding window's rate", log, 1, 2, 30, 10},
		{"and what it has more", log, 1, 2, 4, 16},
		{"and what came back", log, 4, 5, 4, 36},
		{"a window's rest", window, 1, 2, 30, 30},
		{"the next window's too", window, 9, 11, 30, 80},
		{"the next one", window, 10, 11, 30, 50},
		{"two more", window, 10, 31, 30, 150},
	} {
		if got := c.of.Allows(c.from*s, c.to*s, c.burst); got != c.want {
			t.Errorf("%s: %v from %d s to %d s, want %v", c.what, got, c.from, c.to, c.want)
		}
	}
}

// limiter is what all three are.
type limiter interface {
	Take(at, n int64) bool
	Allows(from, to, burst int64) float64
}
