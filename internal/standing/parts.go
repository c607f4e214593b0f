package standing

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Parts is how the windows of a policy are split between Redis and the shares. A window counts what
// was used in it until it ends. So whatever was agreed when it began holds in it to its end: a
// share is used in it only by a process that used shares by then, and had said so. The zero value
// leaves all to Redis.
type Parts struct {
	redis int   // eighths that this process leaves to shares in windows that begin after heard
	heard int64 // when the nodes last said what is in use, by their clocks in µs
	used  [lua.MostShared + 1]lasted
}

// lasted says since when, and until when for certain, a part was in use, by the nodes' clocks in
// µs.
type lasted struct{ from, to int64 }

// Of returns how many eighths of its limit a window has left to shares that begins at a time of the
// node's clock, in µs.
func (s *Parts) Of(begin int64) (eighths int) {
	if begin > s.heard {
		eighths = s.redis
	}
	for e, u := range s.used {
		if u.to > 0 && u.from <= begin && begin <= u.to+life.Microseconds() {
			eighths = max(eighths, e)
		}
	}
	return eighths
}

// Alone reports whether a call for a window must not be executed in the one before or after it,
// because that one leaves more to shares.
func (s *Parts) Alone(begin, length int64) bool {
	e := s.Of(begin)
	return s.Of(begin-length) > e || s.Of(begin+length) > e
}

// windows is what an Agreement knows of windows.
type windows struct {
	longest time.Duration // 0 if the policy has none
	heard   int64         // 0 before any node was
	used    [lua.MostShared + 1]lasted
}

// hear learns which parts were in use, and returns the largest that was in use in a window that may
// not have ended. What a node has lost this process still knows. The clocks of nodes differ, so the
// earliest begin counts, and the latest end.
func (w *windows) hear(h Heard) (most int) {
	if w.longest == 0 || h.At == 0 {
		return 0
	}
	w.heard = h.At
	for _, u := range h.WasUsed {
		is := &w.used[u.Eighths]
		if is.to == 0 {
			is.from = u.From
		}
		*is = lasted{min(is.from, u.From), max(is.to, u.To)}
	}
	for e := range w.used {
		u := &w.used[e]
		if u.to > 0 && h.At > u.to+(life+w.longest).Microseconds() {
			*u = lasted{}
		}
		if u.to > 0 {
			most = e
		}
	}
	return most
}

// Keep returns for how long nodes must keep which parts were in use in windows of a length.
func Keep(longest time.Duration) time.Duration { return longest + life }
