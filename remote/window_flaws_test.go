package remote_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Flaws of published scripts, and what is said of ours at the edge of a window, each on a real Redis. The others are in
// window_doubt_test.go and window_cost_test.go.

// TestMostInAMinute drives each algorithm to the most that docs/choosing.md says a minute can hold, by the
// schedule that is worst for it, and no further: a fixed window twice its limit around an edge, a bucket that
// starts full its burst and what is refilled, the sliding ones never more than their limit.
func TestMostInAMinute(t *testing.T) {
	page, err := os.ReadFile("../docs/choosing.md")
	if err != nil {
		t.Fatal(err)
	}
	e := realEngine(t)
	start := (scriptStart/minute + 1) * minute
	also := of(lua.TokenBuckets, "tm", 100, minute, 0)
	also.Also = []lua.Limit{{Cap: 10, Tokens: 10, Period: sec}}
	small := of(lua.TokenBucket, "tb10", 100, minute, 0)
	small.Cap = 10
	for _, c := range []struct {
		name string
		call lua.Call
		most int
	}{
		{"`FixedWindow`, edges at :00", of(lua.FixedWindow, "fw", 100, minute, 0), 200},
		{"`SlidingLog`", of(lua.SlidingLog, "lg", 100, minute, 0), 100},
		{"`SlidingWindow`, `Precision` 1 s", of(lua.SlidingWindow, "sw1", 100, minute, sec), 100},
		{"`SlidingWindow`, `Precision` 10 s", of(lua.SlidingWindow, "sw10", 100, minute, 10*sec), 100},
		{"" /* 45 s, which do not divide a minute */, of(lua.SlidingWindow, "sw45", 100, minute, 45*sec), 100},
		{"`TokenBucket`, burst 100", of(lua.TokenBucket, "tb", 100, minute, 0), 199},
		{"`TokenBucket`, burst 10", small, 109},
		{"`TokenBucket`, `Also` 10 per second", also, 199},
	} {
		// All that is asked for every 100 ms from half a minute before an edge on, for five minutes, at the last
		// microsecond of a block when it is one.
		var admitted []int64
		for now := start + minute/2 - 1; now < start+5*minute+minute/2; now += 100_000 {
			n, _ := e.burst(t, now, c.call, 100)
			for range n {
				admitted = append(admitted, now)
			}
		}
		most := 0
		for first, i := 0, 0; i < len(admitted); i++ {
			for admitted[i]-admitted[first] >= minute {
				first++
			}
			most = max(most, i-first+1)
		}
		if most != c.most {
			t.Errorf("%s: %d in a minute, want %d", c.name, most, c.most)
		}
		if c.name == "" {
			continue
		}
		// The page has the bound, which what is refilled just misses: C + r·t of a minute that is not over.
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(c.name) +
			` \|(?:[^|]*\|){3} (\d+) \|$`).FindSubmatch(page)
		if row == nil {
			t.Fatalf("docs/choosing.md has no row of %s", c.name)
		}
		if said, _ := strconv.Atoi(string(row[1])); most > said || most < said-1 {
			t.Errorf("%s: %d in a minute, docs/choosing.md says %d", c.name, most, said)
		}
	}
}

// Whoever asks too often is not shut out: what is refused extends nothing. Three per two seconds, asked for once a
// second, is never refused; asked for every 20 ms, each is admitted at the very instant that the first refusal
// named.
func TestRefusalsExtendNothing(t *testing.T) {
	e := realEngine(t)
	for a := lua.SlidingLog; a <= lua.TokenBuckets; a++ {
		c := of(a, fmt.Sprint("slow", a), 3, 2*sec, sec/5)
		for i := range int64(30) {
			if n, refusal := e.burst(t, scriptStart+i*sec, c, 1); n != 1 {
				t.Errorf("algorithm %d, second %d: %+v", a, i, refusal)
			}
		}
		c = of(a, fmt.Sprint("fast", a), 3, 2*sec, sec/5)
		due := int64(0)
		for now := scriptStart; now < scriptStart+20*sec; now += 20_000 {
			if due > 0 && due <= now {
				if n, refusal := e.burst(t, due, c, 1); n != 1 {
					t.Fatalf("algorithm %d, %d µs later as it was told: %+v", a, due-scriptStart, refusal)
				}
				due = 0
			}
			if n, refusal := e.burst(t, now, c, 1); n == 1 {
				due = 0
			} else if at := now + refusal.Retry; due == 0 {
				due = at
			} else if max(at, due)-min(at, due) > 1 { // a level is a double
				t.Fatalf("algorithm %d: told %d, and %d after more refusals", a, due-scriptStart, at-scriptStart)
			}
		}
	}
}

// Limits in any order give the same answers and the same counts, and what one of them refuses counts in none: three
// limits in all six orders, each on a key of its own.
func TestOrderOfLimitsMakesNoDifference(t *testing.T) {
	e := realEngine(t)
	orders := [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	for _, a := range []lua.Algorithm{lua.SlidingWindow, lua.TokenBuckets} {
		limits := []lua.Limit{
			{Cap: 4, Tokens: 4, Period: sec, Span: 11},
			{Cap: 6, Tokens: 6, Period: 10 * sec, Span: 4},
			{Cap: 9, Tokens: 9, Period: minute, Span: 3},
		}
		if a == lua.TokenBuckets {
			for i := range limits {
				limits[i].Span = 0
			}
		}
		refused := map[int]int{}
		for step := range int64(60) {
			now, n := scriptStart+step*step*100_000, 1+step%4
			var first answer
			for i, order := range orders {
				c := of(a, fmt.Sprintf("order/%d/%d", a, i), 1, 1, 1)
				l := limits[order[0]]
				c.Cap, c.Tokens, c.Period, c.Span = l.Cap, l.Tokens, l.Period, l.Span
				c.Also = []lua.Limit{limits[order[1]], limits[order[2]]}
				before := e.lookAt(t, a, c.Bucket).fields
				got := e.at(t, now, take(c, n))
				if got.err != "" || got.reply.Which < 1 || got.reply.Which > 3 {
					t.Fatal(got)
				}
				if got.reply.Which = int64(order[got.reply.Which-1]); i == 0 {
					first = got
				}
				if !sameDecision(first, got) {
					t.Fatalf("algorithm %d, step %d, order %v: %v, want %v", a, step, order, got, first)
				}
				if got.reply.Code != lua.Denied {
					continue
				}
				refused[int(got.reply.Which)]++
				if after := e.lookAt(t, a, c.Bucket).fields; !maps.Equal(before, after) {
					t.Errorf("algorithm %d: a refusal made of\n%v\n%v", a, before, after)
				}
			}
		}
		if len(refused) < 2 {
			t.Errorf("algorithm %d: refused by %v: this shows little", a, refused)
		}
	}
}
