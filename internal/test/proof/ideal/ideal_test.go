package ideal_test

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
)

// limit is a limit as the constructors take it.
type limit struct {
	tokens int64
	per    time.Duration
	burst  int64
}

func (l limit) String() string {
	return fmt.Sprintf("%d per %v, burst %d", l.tokens, l.per, l.burst)
}

// units is the oracle's arithmetic: tokens − rate·length − burst in units of token/period.
func (l limit) units(tokens, from, to int64) *big.Int {
	mul := func(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }
	v := mul(tokens, int64(l.per))
	v.Sub(v, mul(l.tokens, to-from))
	return v.Sub(v, mul(l.burst, int64(l.per)))
}

// brute looks at every interval from a Before to an After, counting anew for each, and at an empty
// one.
func brute(as []ideal.Admission, cs []ideal.Credit, l limit) *big.Int {
	worst := l.units(0, 0, 0)
	for _, from := range as {
		for _, to := range as {
			if to.After < from.Before {
				continue
			}
			if v := l.units(inside(as, cs, from.Before, to.After), from.Before, to.After); v.Cmp(worst) > 0 {
				worst = v
			}
		}
	}
	return worst
}

// inside is what was admitted in an interval, less what may have come back in it.
func inside(as []ideal.Admission, cs []ideal.Credit, from, to int64) (tokens int64) {
	for _, a := range as {
		if from <= a.Before && a.After <= to {
			tokens += a.Tokens
		}
	}
	for _, c := range cs {
		if c.From <= to && from <= c.To {
			tokens -= c.Tokens
		}
	}
	return tokens
}

// agrees fails unless the report is true to its own interval and its excess is the one wanted.
func agrees(t rapid.TB, got ideal.Excess, as []ideal.Admission, cs []ideal.Credit, l limit) {
	t.Helper()
	want := brute(as, cs, l)
	if n := inside(as, cs, got.From, got.To); got.Tokens != n && got.From != got.To {
		t.Fatalf("%v: there are %d tokens in that interval", got, n)
	}
	if v := l.units(got.Tokens, got.From, got.To); v.Cmp(want) != 0 {
		t.Fatalf("%v: %v: over by %v units, want %v", l, got, v, want)
	}
	over, _ := new(big.Rat).SetFrac(want, big.NewInt(int64(l.per))).Float64()
	if math.Abs(got.Over-over) > 1e-12*math.Abs(over) || math.Signbit(got.Over) != (want.Sign() < 0) {
		t.Fatalf("%v: %v: Over is %v, want %v", l, got, got.Over, over)
	}
	if bound := float64(got.Tokens) - got.Over; math.Abs(got.Bound-bound) > 1e-9*(1+math.Abs(bound)) {
		t.Fatalf("%v: Bound is %v, Tokens − Over is %v", got, got.Bound, bound)
	}
}

var limits = rapid.Custom(func(t *rapid.T) limit {
	return limit{
		tokens: rapid.Int64Range(0, 1_000_000).Draw(t, "tokens"),
		per: rapid.OneOf(
			rapid.SampledFrom([]time.Duration{1, time.Microsecond, time.Second, time.Hour, 24 * time.Hour}),
			rapid.Map(rapid.Int64Range(1, int64(time.Hour)), func(d int64) time.Duration { return time.Duration(d) }),
		).Draw(t, "per"),
		burst: rapid.Int64Range(0, 20).Draw(t, "burst"),
	}
})

// pace is about the time in which a limit refills a token, so that streams are near their bound.
func (l limit) pace() int64 {
	if l.tokens == 0 {
		return int64(time.Second)
	}
	return max(1, int64(l.per)/l.tokens)
}

// bases are where streams begin: any base serves, the Unix epoch in nanoseconds too.
var bases = rapid.SampledFrom([]int64{0, -5, 1_763_640_000_123_456_789})

func TestWorstAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, base := limits.Draw(t, "limit"), bases.Draw(t, "base")
		instant := rapid.Int64Range(0, 10*l.pace())
		if rapid.Bool().Draw(t, "coarse") { // many equal times
			instant = rapid.Map(rapid.Int64Range(0, 4), func(i int64) int64 { return i * l.pace() })
		}
		as := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) ideal.Admission {
			a, b := instant.Draw(t, "a"), instant.Draw(t, "b")
			return ideal.Admission{Before: base + min(a, b), After: base + max(a, b), Tokens: rapid.Int64Range(0, 5).Draw(t, "n")}
		}), 0, 16).Draw(t, "admissions")
		cs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) ideal.Credit {
			a, b := instant.Draw(t, "a"), instant.Draw(t, "b")
			return ideal.Credit{From: base + min(a, b), To: base + max(a, b), Tokens: rapid.Int64Range(0, 5).Draw(t, "n")}
		}), 0, 6).Draw(t, "credits")
		kept := slices.Clone(as)
		agrees(t, ideal.WorstNet(as, cs, l.tokens, l.per, l.burst), as, cs, l)
		if !slices.Equal(as, kept) {
			t.Fatal("the admissions were changed")
		}
	})
}

type event struct{ at, n int64 }

// stream is what is offered to a limit.
type stream struct {
	limit  limit
	offers []event
}

var streams = rapid.Custom(func(t *rapid.T) (es stream) {
	es.limit = limits.Draw(t, "limit")
	at := bases.Draw(t, "base")
	for range rapid.IntRange(0, 40).Draw(t, "events") {
		at += rapid.OneOf(rapid.Just(int64(0)), rapid.Just(es.limit.pace()), rapid.Int64Range(0, 3*es.limit.pace())).Draw(t, "gap")
		es.offers = append(es.offers, event{at, rapid.Int64Range(0, 4).Draw(t, "n")})
	}
	return es
})

func points(es []event) (as []ideal.Admission) {
	for _, e := range es {
		as = append(as, ideal.Admission{Before: e.at, After: e.at, Tokens: e.n})
	}
	return as
}

func police(es []event, l limit) ideal.Excess {
	p := ideal.NewPolicer(l.tokens, l.per, l.burst)
	for _, e := range es {
		p.Admit(e.at, e.n)
	}
	return p.Worst()
}

func TestPolicerAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		es := streams.Draw(t, "stream")
		as := points(es.offers)
		agrees(t, police(es.offers, es.limit), as, nil, es.limit)
	})
}

// TestBucketIsTheBound: what the bucket admits never exceeds, and whatever it refused would have,
// however little.
func TestBucketIsTheBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		es := streams.Draw(t, "stream")
		l := es.limit
		b := ideal.NewBucket(l.tokens, l.per, l.burst)
		var admitted []event
		for _, e := range es.offers {
			with := append(slices.Clone(admitted), e)
			if b.Take(e.at, e.n) {
				admitted = with
				continue
			}
			if e := police(with, l); e.Over <= 0 {
				t.Fatalf("%v: refused, but admitting it is within the bound: %v", l, e)
			}
		}
		if e := police(admitted, l); e.Over > 0 {
			t.Fatalf("%v: an ideal stream accused: %v", l, e)
		}
		// An observer that reads the clock before and after knows less, so it may accuse less.
		as := points(admitted)
		for i := range as {
			as[i].Before -= rapid.Int64Range(0, l.pace()).Draw(t, "before")
			as[i].After += rapid.Int64Range(0, l.pace()).Draw(t, "after")
		}
		if e := ideal.Worst(as, l.tokens, l.per, l.burst); e.Over > 0 {
			t.Fatalf("%v: an ideal stream accused: Worst of wide admissions %v", l, e)
		}
	})
}

// TestOneTokenTooMany saturates a limit for a long time, then slips in one token: nothing before,
// exactly 1 after.
func TestOneTokenTooMany(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, l := range []limit{
		{1_000_000, time.Second, 100},
		{1_000_000, time.Second, 1_000_000},
		{1000, time.Second, 1},
		{7, time.Hour, 3},
		{1, 24 * time.Hour, 1},
		{999_983, 86_399_999_999_989, 5}, // primes: no instant but the first refills a whole token
		{1 << 40, year, 1 << 40},
	} {
		t.Run(l.String(), func(t *testing.T) {
			const base, refills = int64(1_763_640_000_123_456_789), 5_000
			b := ideal.NewBucket(l.tokens, l.per, l.burst)
			es := []event{{base, l.burst}}
			if !b.Take(base, l.burst) {
				t.Fatal("a full bucket refuses its burst")
			}
			for i := range int64(refills) {
				// The first nanosecond at which i+1 tokens are there.
				at := new(big.Int).Mul(big.NewInt(i+1), big.NewInt(int64(l.per)))
				at.Add(at, big.NewInt(l.tokens-1)).Div(at, big.NewInt(l.tokens))
				e := event{base + at.Int64(), 1}
				if e.at-1 > es[len(es)-1].at && b.Take(e.at-1, 1) {
					t.Fatalf("token %d is there a nanosecond early", i)
				}
				if !b.Take(e.at, 1) {
					t.Fatalf("token %d is not there in time", i)
				}
				es = append(es, e)
			}
			// over wants both judges to find an excess from least to most.
			over := func(es []event, least, most float64) {
				t.Helper()
				for name, e := range map[string]ideal.Excess{
					"policer": police(es, l), "Worst": ideal.Worst(points(es), l.tokens, l.per, l.burst),
				} {
					if e.Over < least || e.Over > most {
						t.Errorf("%s: %v; want over by %v to %v", name, e, least, most)
					}
				}
			}
			over(es, 0, 0) // the burst alone is at the bound
			for _, i := range []int{0, 1, len(es) / 2, len(es) - 1} {
				more := slices.Clone(es)
				more[i].n++
				// It is over by the whole token where the bound was met exactly, elsewhere by what
				// one nanosecond refills less, as tokens are there at whole nanoseconds only.
				over(more, 1-float64(l.tokens)/float64(l.per), 1)
			}
		})
	}
}

func TestNonsensePanics(t *testing.T) {
	for name, f := range map[string]func(){
		"period":          func() { ideal.NewBucket(1, 0, 1) },
		"tokens":          func() { ideal.NewPolicer(-1, 1, 1) },
		"burst":           func() { ideal.Worst(nil, 1, 1, -1) },
		"cost":            func() { ideal.NewBucket(1, 1, 1).Take(0, -1) },
		"bucket's clock":  func() { b := ideal.NewBucket(1, 1, 1); b.Take(1, 0); b.Take(0, 0) },
		"policer's clock": func() { p := ideal.NewPolicer(1, 1, 1); p.Admit(1, 0); p.Admit(0, 0) },
		"admission":       func() { ideal.Worst([]ideal.Admission{{0, 0, 1}, {9, 5, 1}}, 1, 1, 1) },
		"300 years":       func() { ideal.Worst([]ideal.Admission{{math.MinInt64, math.MaxInt64, 1}}, 1, 1, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("accepted")
				}
			}()
			f()
		})
	}
}

func TestExcessString(t *testing.T) {
	e := ideal.Worst([]ideal.Admission{{0, 0, 5}, {1e9, 1e9, 11}}, 10, time.Second, 5)
	if want := "11 tokens in 0s (from 1s to 1s), bound 5.000000, over by +6"; e.String() != want {
		t.Errorf("got  %s\nwant %s", e, want)
	}
}

// TestPolicerRefunds gives tokens back, as to a bucket that they were taken from too early.
func TestPolicerRefunds(t *testing.T) {
	const s = int64(time.Second)
	for _, c := range []struct {
		name   string
		events [][2]int64 // at (s), tokens; negative are refunds
		over   float64    // of the worst interval
		depth  float64    // at the end
	}{
		{"all back, and again", [][2]int64{{0, 5}, {0, -5}, {0, 5}}, 0, 5},
		{"one more than came back", [][2]int64{{0, 5}, {0, -4}, {0, 5}}, 1, 6},
		{"what overfills is lost", [][2]int64{{0, 2}, {0, -4}, {0, 5}}, 0, 5},
		{"time and a refund", [][2]int64{{0, 5}, {2, -1}, {2, 3}}, 0, 5},
		{"a refund before anything", [][2]int64{{0, -3}, {1, 5}}, 0, 5},
		{"too late for what was", [][2]int64{{0, 6}, {0, -6}}, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := ideal.NewPolicer(1, time.Second, 5)
			for _, e := range c.events {
				if e[1] < 0 {
					p.Refund(e[0]*s, -e[1])
				} else {
					p.Admit(e[0]*s, e[1])
				}
			}
			if over, depth := p.Worst().Over, p.Depth(); over != c.over || depth != c.depth {
				t.Errorf("over %v, depth %v; want %v, %v", over, depth, c.over, c.depth)
			}
		})
	}
}
