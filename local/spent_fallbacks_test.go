package local

import (
	"testing"
	"time"
)

// An evicted key comes back with no more than it had, and little less. A fallback that is full
// after more than 278 years counts as empty.
func TestAnEvictedKeyComesBackWithWhatItHad(t *testing.T) {
	for _, tokens := range []int64{1, 7, 1000} {
		for _, per := range []time.Duration{time.Second, time.Hour, 100 * 365 * 24 * time.Hour} {
			for taken := range int64(11) {
				for _, away := range []time.Duration{0, 600 * time.Microsecond, 700 * ms, time.Hour} {
					p := &Policy{Cap: 10, Tokens: tokens, Per: per, Spent: new(SpentFallbacks)}
					had, has := evicted(p, p, taken, away)
					least := had - 2 - float64(time.Millisecond)*float64(tokens)/float64(per)
					if float64(taken)*float64(per)/float64(tokens) >= float64(latestFull*time.Millisecond) {
						least, had = 0, 0
					}
					if has > had || has < least {
						t.Errorf("%d of 10 taken at %d per %v, %v ago: %v are left, want %v … %v", taken, tokens, per, away, has, least, had)
					}
				}
			}
		}
	}
}

// Under another limit a key has the same part of it left, or less if that takes as long to come
// back.
func TestAnEvictedKeyComesBackUnderAnotherLimit(t *testing.T) {
	for _, c := range []struct {
		rate        int64
		least, most float64
	}{
		{1, 49, 50},  // 5 s are 5 tokens, half of it is 50
		{15, 24, 25}, // 5 s are 75 tokens
		{99, 0, 0},
	} {
		p := &Policy{Cap: 10, Tokens: 1, Per: time.Second, Spent: new(SpentFallbacks)}
		now := &Policy{Cap: 100, Tokens: c.rate, Per: time.Second, Spent: p.Spent}
		if _, has := evicted(p, now, 5, 0); has < c.least || has > c.most {
			t.Errorf("%d per second: %v of 100 are left, want %v … %v", c.rate, has, c.least, c.most)
		}
	}
}

// evicted takes tokens of a key that then is away. It returns what it had left then, and what it
// has under a policy.
func evicted(then, now *Policy, taken int64, away time.Duration) (had, has float64) {
	var f, g fallback
	at := time.Hour + 500*time.Microsecond
	f.resize(then, at, 1, true)
	f.debit(at, taken)
	f.keep(at, then, ID{1, "k"})
	at += away
	g.resize(now, at, 1, true)
	g.drain(at, now.Spent.of(ID{1, "k"}))
	return f.tokens(at), g.tokens(at)
}
