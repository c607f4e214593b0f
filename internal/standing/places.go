package standing

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// PlaceBits is the logarithm of the number of places of a process, 8 bytes each: 8 MB, however many
// keys there are.
const PlaceBits = 20

// Shares are the standing shares of this process, of all keys of all limits. The zero value has no
// right to anything. All methods may be called concurrently.
//
// A key's share of a limit is one number in a place that its hash chooses: the virtual time at
// which the share was empty, as in the virtual scheduling of GCRA (ITU-T I.371), and which limits
// used it last. The places of a key with several limits are neighbors. Keys that meet in a place
// share one share. That is stricter than their limits, and costs a call now and then.
type Shares struct {
	places  atomic.Pointer[places] // of buckets
	windows atomic.Pointer[places] // of windows: their time is the nodes'
	current atomic.Pointer[stretch]
	clock   atomic.Pointer[nodeClock]

	mu     sync.Mutex // guards changes of current, and what follows
	member member
	tag    word // the last that Begin gave
}

// Use is what was taken from a share: see [Shares.Return]. The zero value is nothing.
type Use struct {
	limits Limits
	tokens int64
	after  word          // what the places said then, summed
	token  time.Duration // of a window: what one takes of its place
	end    int64         // of the window, by the nodes' clocks in µs; 0 of a bucket
}

// Empty reports whether u is nothing.
func (u Use) Empty() bool { return u.limits == nil }

// idle is the stretch of a process without a right.
var idle = new(stretch)

func (s *Shares) stretch() *stretch {
	if c := s.current.Load(); c != nil {
		return c
	}
	return idle
}

// places are what [Shares.Open] made room for. Their number is a power of two.
type places struct {
	shift int // of a hash, to the number of its place
	words []atomic.Uint64
}

// word is what a place says: when a share was empty, in units of virtual time, and in the lower
// bits the tag of the limits that used it last. It is 0 while nobody has used the place. Then it
// says an early time, which makes the share as full as its fraction has been.
//
// What one limit did not use is no tokens of another, because the two need other times for a token.
// So limits find nothing in a place that others used last. Once the place was not used for as long
// as their share takes to fill, they take it over, and begin with an empty share. Tags are given in
// turn: a place that was used with one would have to wait for 4095 other limits to take it for that
// of another. Then the key has one share more.
type word uint64

const (
	tagBits  = 12
	unitBits = 6 // of unit
)

func (w word) empty() time.Duration { return time.Duration(w >> tagBits << unitBits) }

func (w word) tag() word { return w & (1<<tagBits - 1) }

// wordOf returns a word that says that a share of the limits with a tag was empty at a time, which
// is in whole units.
func wordOf(empty time.Duration, tag word) word { return word(empty)<<(tagBits-unitBits) | tag }

// isOf reports whether the place that says w may be used by the limits with a tag.
func (w word) isOf(tag word) bool { return w == 0 || w.tag() == tag }

// place returns the place of a key's share of a limit. Keys with as many limits meet in all their
// places or in none, so each limit meets its like.
func (s *Shares) place(hash uint64, l *Limit) *atomic.Uint64 {
	p := s.places.Load()
	if l.window > 0 {
		p = s.windows.Load()
	}
	return &p.words[hash>>p.shift&^l.others|l.place]
}

// room is what a key's share of one limit has at a moment. A place that says floor or less is that
// of a full share, one that says ceiling of an empty one, and a token takes it further by token.
type room struct {
	place                 *atomic.Uint64
	floor, ceiling, token time.Duration
	tag                   word
	window                bool
}

// room returns the room of the share of one limit. It reports false if the share has nothing.
func (s *Shares) room(c *stretch, at At, hash uint64, l *Limit) (r room, ok bool) {
	if l.window > 0 {
		return s.roomInWindow(c, at, hash, l)
	}
	v := c.now(at.Now)
	return room{s.place(hash, l), c.empty(v, l), v, l.token, l.tag, false}, true
}

// says returns what the place says, and the time at which the share was empty. It reports false if
// the place belongs to other limits. In a window nobody has used it is nobody's.
func (r *room) says() (w word, empty time.Duration, ok bool) {
	w = word(r.place.Load())
	return w, max(w.empty(), r.floor), w.isOf(r.tag) || r.window && w.empty() <= r.floor
}

// used reports whether some of the share was used.
func (r *room) used() bool { return word(r.place.Load()).empty() > r.floor }

// level returns how many tokens the share has.
func (r *room) level() int64 {
	_, empty, ok := r.says()
	if !ok {
		return 0
	}
	return max(int64((r.ceiling-empty)/r.token), 0)
}

// take takes n tokens, and returns what the place says then.
func (r *room) take(n int64) (w word, ok bool) {
	for {
		is, empty, ok := r.says()
		if n > int64((r.ceiling-empty)/r.token) {
			return 0, false
		}
		if !ok {
			r.takeOver()
			return 0, false
		}
		if w = wordOf(empty+time.Duration(n)*r.token, r.tag); r.place.CompareAndSwap(uint64(is), uint64(w)) {
			return w, true
		}
	}
}

// takeOver makes the place the share's own if others used it last, and not for as long as the share
// takes to fill.
func (r *room) takeOver() {
	if w := word(r.place.Load()); !w.isOf(r.tag) && w.empty() <= r.floor {
		r.place.CompareAndSwap(uint64(w), uint64(wordOf(r.ceiling, r.tag)))
	}
}

// has reports whether this process has a right at a moment.
func (c *stretch) has(at At) bool { return at.Now < c.end && c.fraction > 0 }

// Take takes n ≥ 1 tokens from the share of a key, all or nothing, and returns how many are left.
// hash is of the key and its policy. If u is not nil, Take stores in it how the tokens can be put
// back. It never blocks and does not allocate.
func (s *Shares) Take(at At, hash uint64, limits Limits, n int64, u *Use) (left int64, ok bool) {
	c := s.stretch()
	if !c.has(at) {
		return 0, false
	}
	for i := 1; i < len(limits); i++ { // look first: what is taken and put back may be burnt
		if r, ok := s.room(c, at, hash, &limits[i]); !ok || r.level() < n {
			if ok {
				r.takeOver()
			}
			return 0, false
		}
	}
	use := Use{limits: limits, tokens: n}
	left = math.MaxInt64
	for i := range limits {
		r, ok := s.room(c, at, hash, &limits[i])
		w := word(0)
		if ok {
			w, ok = r.take(n)
		}
		if !ok { // another was quicker
			use.limits = limits[:i]
			s.Return(hash, use, n)
			return 0, false
		}
		use.after += w
		if r.window {
			use.token, use.end = r.token, at.Window.begin+at.Window.length
		}
		left = min(left, int64((r.ceiling-w.empty())/r.token))
	}
	if u != nil {
		*u = use
	}
	return left, true
}

// Return puts n tokens of a use back, as if they had not been taken. It reports false, and puts
// nothing back, if a place was used since. With several limits it burns the tokens of a place that
// is used at this very moment. A share that has begun anew since then gets nothing. A use may be
// returned once.
func (s *Shares) Return(hash uint64, u Use, n int64) (ok bool) {
	if n > u.tokens {
		return false
	}
	// From a take until its return, no place falls below what it said then: the return of another
	// use takes back only what that one added. So if the sum is the same, no place was used.
	var w [lua.MostLimits]word
	for i := range u.limits {
		w[i] = word(s.place(hash, &u.limits[i]).Load())
		u.after -= w[i]
	}
	if u.after != 0 {
		return false
	}
	for i := range u.limits {
		l, token := &u.limits[i], u.limits[i].token
		if l.window > 0 {
			token = u.token
		}
		was := w[i].empty() - time.Duration(n)*token
		if s.place(hash, l).CompareAndSwap(uint64(w[i]), uint64(wordOf(was, l.tag))) {
			ok = true
		}
	}
	return ok
}

// Charge takes up to n tokens from the share of a key, whether it has them or not, and returns how
// many it took. The share goes below zero by this process' part of the debt at most; see
// [Limit.Owing]. Then it admits nothing until it has refilled. A debt is forgotten if the process
// dies.
func (s *Shares) Charge(at At, hash uint64, limits Limits, n int64) (taken int64) {
	c := s.stretch()
	if !c.has(at) {
		return 0
	}
	for i := range limits { // of several limits, as many tokens as each can bear
		n = min(n, s.bears(c, at, hash, &limits[i]))
	}
	if n <= 0 {
		return 0
	}
	for i := range limits {
		r, _ := s.room(c, at, hash, &limits[i])
		for {
			is, empty, _ := r.says()
			if r.place.CompareAndSwap(uint64(is), uint64(wordOf(empty+time.Duration(n)*r.token, r.tag))) {
				break
			}
		}
	}
	return n
}

// bears returns how many tokens the share of one limit can be charged.
func (s *Shares) bears(c *stretch, at At, hash uint64, l *Limit) int64 {
	r, ok := s.room(c, at, hash, l)
	if !ok {
		return 0
	}
	_, empty, ok := r.says()
	if !ok {
		return 0
	}
	return int64(max(r.ceiling-empty+scale(time.Duration(l.debt)*r.token, c.fraction), 0) / r.token)
}

// Bearable returns the most that one request may cost a share, if the share is full and may go
// below zero as far as its debt allows: of several limits, the least.
func (s *Shares) Bearable(limits Limits) int64 {
	f, most := s.stretch().fraction, int64(math.MaxInt64)
	for i := range limits {
		most = min(most, (limits[i].size+limits[i].debt)*f/lua.Pool)
	}
	return most
}

// Refund gives up to n tokens to the share of a key, which gets no fuller than full, and returns
// how many fit: of several limits, the most.
func (s *Shares) Refund(at At, hash uint64, limits Limits, n int64) (given int64) {
	c := s.stretch()
	if !c.has(at) {
		return 0
	}
	for i := range limits {
		r, ok := s.room(c, at, hash, &limits[i])
		for ok {
			is, empty, its := r.says()
			fits := min(n, int64((empty-r.floor+r.token-1)/r.token))
			if fits == 0 || !its {
				break
			}
			if r.place.CompareAndSwap(uint64(is), uint64(wordOf(max(empty-time.Duration(fits)*r.token, r.floor), r.tag))) {
				given = max(given, fits)
				break
			}
		}
	}
	return given
}

// Level returns how many tokens the share of a key has now: of several limits, the fewest.
func (s *Shares) Level(at At, hash uint64, limits Limits) int64 {
	return s.By(at, at.Now, hash, limits)
}

// By returns how many tokens the share of a key can give from now until a time, if nobody else
// takes any: of several limits, the fewest. It goes by the right that this process has now.
func (s *Shares) By(at At, until time.Duration, hash uint64, limits Limits) int64 {
	c := s.stretch()
	if !c.has(at) {
		return 0
	}
	least := int64(math.MaxInt64)
	for i := range limits {
		r, ok := s.room(c, at, hash, &limits[i])
		if !ok {
			return 0
		}
		_, empty, ok := r.says()
		if !ok {
			return 0
		}
		n := int64(0)
		if limits[i].window == 0 {
			r.ceiling = c.now(until)
		} else if until >= at.Now+at.Window.left {
			n = limits[i].has(c.fraction)
		}
		least = min(least, n+max(int64((r.ceiling-empty)/r.token), 0))
	}
	return least
}

// Wait returns how long it takes until the share of a key has n tokens of each limit, if nobody
// takes any: [math.MaxInt64] if it never has so many, or if that is not known.
func (s *Shares) Wait(at At, hash uint64, limits Limits, n int64) (longest time.Duration) {
	c := s.stretch()
	for i := range limits {
		l := &limits[i]
		if at.Now >= c.end || n > l.has(c.fraction) {
			return math.MaxInt64
		}
		r, ok := s.room(c, at, hash, l)
		if l.window > 0 {
			if (!ok || r.level() < n) && at.Window.left > 0 {
				longest = max(longest, at.Window.left)
			} else if !ok {
				return math.MaxInt64
			}
			continue
		}
		_, empty, ok := r.says()
		if !ok {
			return math.MaxInt64
		}
		longest = max(longest, c.real(empty+time.Duration(n)*l.token-r.ceiling))
	}
	// Each poll, one in 3 s, begins a stretch, and that rounds virtual time down to a ns. A client
	// that comes back when it is told must not be a few ns early. A millionth more is enough for
	// fractions down to 1/3000.
	return longest + min(longest>>20, math.MaxInt64-longest)
}

// Full returns how long it takes until the share of a key is full of each limit, if nobody takes
// any: 0 if this process has no right to any.
func (s *Shares) Full(at At, hash uint64, limits Limits) (longest time.Duration) {
	c := s.stretch()
	if !c.has(at) {
		return 0
	}
	for i := range limits {
		l := &limits[i]
		r, ok := s.room(c, at, hash, l)
		if l.window > 0 {
			if ok && r.used() {
				longest = max(longest, at.Window.left)
			}
			continue
		}
		_, empty, ok := r.says()
		if !ok {
			empty = r.ceiling
		}
		longest = max(longest, c.real(empty+scale(l.fill, c.fraction)-r.ceiling))
	}
	return longest
}

// real returns the time in which virtual time goes on by d, rounded up.
func (c *stretch) real(d time.Duration) time.Duration {
	speed := c.fraction * (lua.Pool - drift) / lua.Pool
	if d <= 0 {
		return 0
	}
	if speed == 0 {
		return math.MaxInt64
	}
	x := math.Ceil(float64(d) * lua.Pool / float64(speed))
	if x >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(x)
}
