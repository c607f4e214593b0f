package ideal

import (
	"math"
	"time"
)

// Log is the ideal sliding window: it admits a number of tokens in any interval of a given length,
// and answers at once. It also judges what others admit. It keeps each admission for that length.
// Make one with [NewLog].
type Log struct {
	tokens  int64
	length  int64 // ns
	entries []entry
	used    int64
	over    float64
}

// entry is an admission, by when it was asked for.
type entry struct{ at, n int64 }

// NewLog returns a limiter of which nothing is used.
func NewLog(tokens int64, length time.Duration) *Log {
	return &Log{tokens: tokens, length: int64(length), over: math.Inf(-1)}
}

// reach forgets what no interval that ends at a time has.
func (l *Log) reach(at int64) {
	old := 0
	for ; old < len(l.entries) && l.entries[old].at <= at-l.length; old++ {
		l.used -= l.entries[old].n
	}
	l.entries = l.entries[old:]
}

// Has reports whether n tokens can be had at a time (ns). Times must not go back.
func (l *Log) Has(at, n int64) bool {
	l.reach(at)
	return n <= l.tokens-l.used
}

// Take takes n tokens at a time if they can be had, and reports that.
func (l *Log) Take(at, n int64) bool {
	has := l.Has(at, n)
	if has {
		l.add(at, n)
	}
	return has
}

// add keeps the entries sorted. What is decided later was seldom asked for earlier.
func (l *Log) add(at, n int64) {
	l.used += n
	l.entries = append(l.entries, entry{at, n})
	for i := len(l.entries) - 1; i > 0 && l.entries[i-1].at > at; i-- {
		l.entries[i-1], l.entries[i] = l.entries[i], l.entries[i-1]
	}
}

// Allows reports how many tokens can be had from a time until before another one, beside a burst.
// These are what comes back if use is even, and what is left above the burst.
func (l *Log) Allows(from, to, burst int64) float64 {
	left := l.tokens - l.used
	for _, e := range l.entries {
		if e.at > from-l.length {
			break
		}
		left += e.n
	}
	return float64(l.tokens)*float64(to-from)/float64(l.length) + float64(max(left-burst, 0))
}

// Admit records an admission by somebody else, between the times when it was asked for and when it
// was decided. An interval has it only if it has both.
func (l *Log) Admit(asked, decided, n int64) {
	if l.reach(decided); asked > decided-l.length {
		l.add(asked, n)
		l.over = max(l.over, float64(l.used-l.tokens))
	}
}

// Over is how many tokens too many the worst interval has.
func (l *Log) Over() float64 { return l.over }

// Forget forgets the worst interval so far, and not what was admitted.
func (l *Log) Forget() { l.over = math.Inf(-1) }
