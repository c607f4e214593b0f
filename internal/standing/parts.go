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
	windows
	redis  int           // eighths that this process leaves to shares in windows that begin after heard
	agreed time.Duration // since then this process may use its shares, if it may
}

// lasted says since when, and until when for certain, a part was in use, by the nodes' clocks in
// µs.
type lasted struct{ from, to int64 }

// Moment is the time: of the process, and of a node as the process knows it, in µs.
type Moment struct {
	Now    time.Duration
	Server int64
}

// Of returns how many eighths of its limit a window leaves to shares that begins at a time of the
// node's clock, in µs. It reports alone if a call for the window must not be executed in another
// one, because that may leave more to shares.
func (s *Parts) Of(m Moment, begin int64) (eighths int, alone bool) {
	most := s.redis // that any window may leave
	if begin > s.heard {
		eighths = s.redis
	}
	for e := range s.used {
		u := &s.used[e]
		if u.to > 0 {
			most = max(most, e)
		}
		if u.has(begin) {
			eighths = max(eighths, e)
		}
	}
	if !s.runsOn(m) {
		eighths = most
	}
	return eighths, eighths < most
}

// Used reports whether this process may use its shares in a window: it has used shares since before
// the window began, all nodes knew that then, and they still do, so that each process can know it.
func (s *Parts) Used(w Window) bool {
	said := s.said[s.redis]
	return w.since >= s.agreed && said > 0 && said <= w.begin && s.used[s.redis].has(w.begin)
}

// runsOn reports whether the node's clock was not set since the nodes were heard. If it was, what
// they said of windows is of others, until they say it again.
func (s *Parts) runsOn(m Moment) bool {
	passed, shown := m.Now-s.heardAt, micros(m.Server-s.heard)
	return (passed - shown).Abs() <= unsure+passed.Abs()/100
}

// unsure is how well a process knows a node's clock, for a node that is far away.
const unsure = 200 * time.Millisecond

// has reports whether the part was in use when a window began.
func (u *lasted) has(begin int64) bool {
	return u.to > 0 && u.from <= begin && begin <= u.to+life.Microseconds()
}

// windows is what nodes said of the windows of a policy.
type windows struct {
	longest time.Duration // 0 if the policy has none
	heard   int64         // when the nodes last said what is in use, by their clocks in µs; 0 before
	heardAt time.Duration // the same by the process' clock
	used    [lua.MostShared + 1]lasted
	said    [lua.MostShared + 1]int64 // since when the nodes say that each is in use: the latest, 0 if one says nothing
}

// hear learns which parts were in use in windows that may not have ended. What a node has lost this
// process still knows. The clocks of nodes differ, so the earliest begin counts, and the latest
// end.
func (w *windows) hear(h Heard) {
	if w.longest == 0 {
		return
	}
	if h.At > 0 {
		w.heard, w.heardAt = h.At, h.HeardAt
	}
	var nodes [lua.MostShared + 1]int
	w.said = [lua.MostShared + 1]int64{}
	for _, u := range h.WasUsed {
		nodes[u.Eighths]++
		w.said[u.Eighths] = max(w.said[u.Eighths], u.From)
		is := &w.used[u.Eighths]
		if is.to == 0 {
			is.from = u.From
		}
		*is = lasted{min(is.from, u.From), max(is.to, u.To)}
	}
	for e := range w.used {
		if nodes[e] < h.Told {
			w.said[e] = 0
		}
		u := &w.used[e]
		if u.to > 0 && h.At > u.to+(life+w.longest).Microseconds() {
			*u = lasted{}
		}
	}
}

// Keep returns for how long nodes must keep which parts were in use in windows of a length.
func Keep(longest time.Duration) time.Duration { return longest + life }
