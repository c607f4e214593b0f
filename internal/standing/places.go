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
	places  atomic.Pointer[places]
	current atomic.Pointer[stretch]

	mu     sync.Mutex // guards changes of current, and what follows
	member member
	tag    word // the last that Begin gave
}

// Use is what was taken from a share: see [Shares.Return]. The zero value is nothing.
type Use struct {
	limits Limits
	tokens int64
	after  word // what the places said then, summed
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

// at returns a word that says that a share of the limits with a tag was empty at a time, which is
// in whole units.
func at(empty time.Duration, tag word) word { return word(empty)<<(tagBits-unitBits) | tag }

// isOf reports whether the place that says w may be used by the limits with a tag.
func (w word) isOf(tag word) bool { return w == 0 || w.tag() == tag }

// place returns the place of a key's share of a limit. Keys with as many limits meet in all their
// places or in none, so each limit meets its like.
func (s *Shares) place(hash uint64, l *Limit) *atomic.Uint64 {
	p := s.places.Load()
	return &p.words[hash>>p.shift&^l.others|l.place]
}

// Take takes n ≥ 1 tokens from the share of a key, all or nothing, and returns how many are left.
// hash is of the key and its policy. If u is not nil, Take stores in it how the tokens can be put
// back. It never blocks and does not allocate.
func (s *Shares) Take(now time.Duration, hash uint64, limits Limits, n int64, u *Use) (left int64, ok bool) {
	c := s.stretch()
	if now >= c.end || c.fraction == 0 {
		return 0, false
	}
	v := c.now(now)
	for i := 1; i < len(limits); i++ { // look first: what is taken and put back may be burnt
		if l := &limits[i]; s.level(c, v, hash, l) < n {
			s.takeOver(c, v, hash, l)
			return 0, false
		}
	}
	sum := word(0)
	left = math.MaxInt64
	for i := range limits {
		l := &limits[i]
		w, ok := s.take(c, v, hash, l, n)
		if !ok { // another was quicker
			s.Return(hash, Use{limits[:i], n, sum}, n)
			return 0, false
		}
		sum += w
		left = min(left, int64((v-w.empty())/l.token))
	}
	if u != nil {
		*u = Use{limits, n, sum}
	}
	return left, true
}

// take takes n tokens from the share of one limit at the virtual time v, and returns what its place
// says then.
func (s *Shares) take(c *stretch, v time.Duration, hash uint64, l *Limit, n int64) (w word, ok bool) {
	if n > l.size {
		return 0, false
	}
	empty, place := c.empty(v, l), s.place(hash, l)
	for {
		is := word(place.Load())
		after := max(is.empty(), empty) + time.Duration(n)*l.token
		if after > v {
			return 0, false
		}
		if !is.isOf(l.tag) {
			s.takeOver(c, v, hash, l)
			return 0, false
		}
		if w = at(after, l.tag); place.CompareAndSwap(uint64(is), uint64(w)) {
			return w, true
		}
	}
}

// takeOver makes the place of a limit's share its own if others used it last, and not for as long
// as the share takes to fill.
func (s *Shares) takeOver(c *stretch, v time.Duration, hash uint64, l *Limit) {
	place := s.place(hash, l)
	if w := word(place.Load()); !w.isOf(l.tag) && w.empty() <= c.empty(v, l) {
		place.CompareAndSwap(uint64(w), uint64(at(v, l.tag)))
	}
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
		l := &u.limits[i]
		was := w[i].empty() - time.Duration(n)*l.token
		if s.place(hash, l).CompareAndSwap(uint64(w[i]), uint64(at(was, l.tag))) {
			ok = true
		}
	}
	return ok
}

// Charge takes up to n tokens from the share of a key, whether it has them or not, and returns how
// many it took. The share goes below zero by this process' part of the debt at most; see
// [Limit.Owing]. Then it admits nothing until it has refilled. A debt is forgotten if the process
// dies.
func (s *Shares) Charge(now time.Duration, hash uint64, limits Limits, n int64) (taken int64) {
	c := s.stretch()
	if now >= c.end || c.fraction == 0 {
		return 0
	}
	v := c.now(now)
	for i := range limits { // of several limits, as many tokens as each can bear
		n = min(n, s.bears(c, v, hash, &limits[i]))
	}
	if n <= 0 {
		return 0
	}
	for i := range limits {
		l, empty := &limits[i], c.empty(v, &limits[i])
		place := s.place(hash, l)
		for {
			is := word(place.Load())
			after := max(is.empty(), empty) + time.Duration(n)*l.token
			if place.CompareAndSwap(uint64(is), uint64(at(after, l.tag))) {
				break
			}
		}
	}
	return n
}

// bears returns how many tokens the share of one limit can be charged at the virtual time v.
func (s *Shares) bears(c *stretch, v time.Duration, hash uint64, l *Limit) int64 {
	empty, ok := s.empty(c, v, hash, l)
	if !ok {
		return 0
	}
	return int64(max(v-empty+scale(time.Duration(l.debt)*l.token, c.fraction), 0) / l.token)
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
func (s *Shares) Refund(now time.Duration, hash uint64, limits Limits, n int64) (given int64) {
	c := s.stretch()
	if now >= c.end || c.fraction == 0 {
		return 0
	}
	v := c.now(now)
	for i := range limits {
		l, full := &limits[i], c.empty(v, &limits[i])
		place := s.place(hash, l)
		for {
			is := word(place.Load())
			lacks := int64((max(is.empty(), full) - full + l.token - 1) / l.token)
			fits := min(n, lacks)
			if fits == 0 || !is.isOf(l.tag) {
				break
			}
			if place.CompareAndSwap(uint64(is), uint64(at(max(is.empty()-time.Duration(fits)*l.token, full), l.tag))) {
				given = max(given, fits)
				break
			}
		}
	}
	return given
}

// Level returns how many tokens the share of a key has now: of several limits, the fewest.
func (s *Shares) Level(now time.Duration, hash uint64, limits Limits) int64 {
	return s.By(now, now, hash, limits)
}

// By returns how many tokens the share of a key can give from now until a time, if nobody else
// takes any: of several limits, the fewest. It goes by the right that this process has now.
func (s *Shares) By(now, until time.Duration, hash uint64, limits Limits) int64 {
	c := s.stretch()
	if now >= c.end || c.fraction == 0 {
		return 0
	}
	v, then, least := c.now(now), c.now(until), int64(math.MaxInt64)
	for i := range limits {
		l := &limits[i]
		empty, ok := s.empty(c, v, hash, l)
		if !ok {
			return 0
		}
		least = min(least, max(int64((then-empty)/l.token), 0))
	}
	return least
}

// level returns how many tokens the share of one limit has at the virtual time v.
func (s *Shares) level(c *stretch, v time.Duration, hash uint64, l *Limit) int64 {
	empty, ok := s.empty(c, v, hash, l)
	if !ok {
		return 0
	}
	return max(int64((v-empty)/l.token), 0)
}

// empty returns the virtual time at which the share of one limit was empty. It reports false if its
// place belongs to other limits.
func (s *Shares) empty(c *stretch, v time.Duration, hash uint64, l *Limit) (empty time.Duration, ok bool) {
	w := word(s.place(hash, l).Load())
	return max(w.empty(), c.empty(v, l)), w.isOf(l.tag)
}

// Wait returns how long it takes until the share of a key has n tokens of each limit, if nobody
// takes any: [math.MaxInt64] if it never has so many, or if that is not known.
func (s *Shares) Wait(now time.Duration, hash uint64, limits Limits, n int64) (longest time.Duration) {
	c := s.stretch()
	v := c.now(now)
	for i := range limits {
		l := &limits[i]
		if now >= c.end || n > l.size || time.Duration(n)*l.token > scale(l.fill, c.fraction) {
			return math.MaxInt64
		}
		empty, ok := s.empty(c, v, hash, l)
		if !ok {
			return math.MaxInt64
		}
		longest = max(longest, c.real(empty+time.Duration(n)*l.token-v))
	}
	// Each poll, one in 3 s, begins a stretch, and that rounds virtual time down to a ns. A client
	// that comes back when it is told must not be a few ns early. A millionth more is enough for
	// fractions down to 1/3000.
	return longest + min(longest>>20, math.MaxInt64-longest)
}

// Full returns how long it takes until the share of a key is full of each limit, if nobody takes
// any: 0 if this process has no right to any.
func (s *Shares) Full(now time.Duration, hash uint64, limits Limits) (longest time.Duration) {
	c := s.stretch()
	if now >= c.end || c.fraction == 0 {
		return 0
	}
	v := c.now(now)
	for i := range limits {
		l := &limits[i]
		empty, ok := s.empty(c, v, hash, l)
		if !ok {
			empty = v
		}
		longest = max(longest, c.real(empty+scale(l.fill, c.fraction)-v))
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
