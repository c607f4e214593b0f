package local

import (
	"math"
	"time"
)

// never is a time that does not come.
const never = math.MaxInt64

// unlimited, as serve's level, refuses nobody.
const unlimited = math.MaxInt64

// Numbers are the burst and the rate of one token bucket.
type Numbers struct {
	Cap, Tokens int64
	Per         time.Duration
}

// below reports whether n has a smaller burst or a lower rate than m.
func (n Numbers) below(m Numbers) bool {
	return n.Cap < m.Cap || float64(n.Tokens)/float64(n.Per) < float64(m.Tokens)/float64(m.Per)
}

// later is now + d, or never.
func later(now, d time.Duration) time.Duration {
	if d >= never-now {
		return never
	}
	return now + d
}

// micros converts a time as Redis tells it.
func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
