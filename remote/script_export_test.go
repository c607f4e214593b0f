package remote

import (
	"math"
	"time"
)

// longAgo is further back than a time.Duration reaches: the time since then is the longest Duration
// there is, always.
var longAgo = time.Date(1, time.January, 2, 0, 0, 0, 0, time.UTC)

// StopClock makes a Memory's own clock stand still at a time in µs since 1970. Times to live then
// run by the time that a test injects, and PTTL right after a call is what the call set, to the ms.
func (m *Memory) StopClock(now int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.base, m.wall = longAgo, now-time.Duration(math.MaxInt64).Microseconds()
}
