package standing

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// At is a moment: the process' time and, for a limit by windows, the key's window then.
type At struct {
	Now    time.Duration
	Window Window
}

// Window is a window of a key. The zero value is none: then a share has nothing.
type Window struct {
	begin, length int64         // by the node's clock, in µs
	since         time.Duration // by the process' clock: then it had not begun
	left          time.Duration // until it ends, at most
}

// nodeClock is what is known of the nodes' clocks: at the process' time at they showed from to to,
// in µs. While that is not known, to is 0.
type nodeClock struct {
	base     int64 // what the first of them showed: the times of places begin there
	from, to int64
	at       time.Duration
}

// Clock notes that the clocks of all nodes show a time between from and to, in µs, at the process'
// time now.
func (s *Shares) Clock(now time.Duration, from, to int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	base := from
	if c := s.clock.Load(); c != nil {
		base = c.base
	}
	s.clock.Store(&nodeClock{base, from, to, now})
}

// Times is what the nodes' clocks show at a moment, as this process knows. It is zero before they
// are known.
type Times struct {
	now            time.Duration
	base, from, to int64
}

// Times returns what the nodes' clocks show at the process' time now.
func (s *Shares) Times(now time.Duration) Times {
	c := s.clock.Load()
	if c == nil || c.to == 0 {
		return Times{}
	}
	since := (now - c.at).Microseconds()
	slack := max(since, -since)/100 + 1 // the rates of clocks differ by less than a hundredth
	return Times{now, c.base, c.from + since - slack, c.to + since + slack}
}

// From returns the earliest time that a node's clock may show, in µs.
func (t Times) From() int64 { return t.from }

// Window returns the window that contains From. If the clocks of nodes differ, or are not known
// well enough to say whether it is over, it returns none, and Redis decides. It also does for a
// window that began before this process knew a clock.
func (t Times) Window(begin, length int64) Window {
	if begin < t.base || t.base == 0 || t.to >= begin+length {
		return Window{}
	}
	begun := t.to - begin // so long ago, at most
	return Window{
		begin: begin, length: length,
		since: t.now - micros(begun+begun/100+1), left: micros(begin+length-t.from) + 1,
	}
}

// Over reports whether the window of a use may be over. What is put back then belongs to no window:
// the one that runs would admit as much more than its limit.
func (u Use) Over(t Times) bool { return u.end > 0 && (t.to == 0 || t.to >= u.end) }

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// ShortestWindow is the length of the shortest window that has shares: in a shorter one a process
// rarely knows that it has begun and is not over.
const ShortestWindow = time.Second

// MostInWindow returns the most tokens that the shares of a limit by windows may have together. A
// place tells as many of them apart; of more, nobody could use any.
func MostInWindow(length time.Duration) int64 { return length.Microseconds() * int64(inPlaces/unit) }

// SplitWindow splits a limit by windows. longest is the length of the longest of them, and parts is
// how many eighths of the tokens the standing shares get. It returns their part, and the tokens of
// Redis. A window cannot lend from the one after it, so a share has all of its tokens when a window
// begins, and what is left of them ends with it.
func SplitWindow(tokens int64, longest time.Duration, parts int64) (l Limit, rest int64) {
	shared := Tokens(tokens, parts)
	return Limit{size: shared, window: longest}, tokens - shared
}

// inPlaces is the unit of time of a place of a window: each µs of the nodes' clocks has 16 of the
// units of words.
const inPlaces = 16 * unit

// roomInWindow returns the room of a key's share in its window. The share has what the process
// could use all the time since the window began: others may have used the rest.
func (s *Shares) roomInWindow(c *stretch, at At, hash uint64, l *Limit) (r room, ok bool) {
	w, clock := &at.Window, s.clock.Load()
	size := l.has(c.since(w.since))
	if w.length == 0 || size == 0 || clock == nil {
		return room{}, false
	}
	floor := time.Duration(w.begin-clock.base) * inPlaces
	token := time.Duration(w.length) * inPlaces / time.Duration(l.size) &^ (unit - 1)
	if token == 0 || floor+time.Duration(w.length)*inPlaces >= mostInPlaces {
		return room{}, false
	}
	return room{s.place(hash, l), floor, floor + time.Duration(size)*token, token, l.tag, true}, true
}

// mostInPlaces is where the times of places of windows end, after nine years.
const mostInPlaces = 1 << (64 - tagBits + unitBits)

// has returns how many tokens a fraction of all shares of the limit holds.
func (l *Limit) has(fraction int64) int64 { return l.size * fraction / lua.Pool }
