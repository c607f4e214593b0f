package remote

import (
	"math"
	"time"
)

// longAgo is further back than a time.Duration reaches: the time since then is the longest Duration there is, always.
var longAgo = time.Date(1, time.January, 2, 0, 0, 0, 0, time.UTC)

// StopClock makes a Memory's own clock stand still at a time in µs since 1970. Times to live then run by the time that a
// test injects, and PTTL right after a call is what the call set, to the ms.
func (m *Memory) StopClock(now int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.base, m.wall = longAgo, now-time.Duration(math.MaxInt64).Microseconds()
}

// ScriptOf is the script of an algorithm, and whether it stores a sorted set.
func ScriptOf(a Algorithm) (source, sha string, sorted bool) {
	s := algorithms[a]
	return s.script.source.(string), s.script.sha.(string), s.sorted
}

// Algorithms is the number of them.
const Algorithms = len(algorithms)

// LongArgs are the arguments of a call in the form that says all.
func LongArgs(c Call) []any { return longOrder(&c).args[argFirst:] }

// CallArgs are the arguments of a call as Redis gets them.
func CallArgs(c Call) []any { return callOrder(&c, nil).args[argFirst:] }
