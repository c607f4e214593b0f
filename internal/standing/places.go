package standing

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// PlaceBits is the logarithm of the number of places of a process, 8 bytes each: 8 MB, however many keys there are.
const PlaceBits = 20

// Shares are the standing shares of this process, of all keys of all limits. The zero value has no right to anything. All
// methods may be called concurrently.
//
// A key's share is one number in a place that its hash chooses: the virtual time at which the share was empty, as in the
// virtual scheduling of GCRA (ITU-T I.371). Keys that meet in a place share one share. That is stricter than their
// limits, and costs a call now and then.
type Shares struct {
	places  atomic.Pointer[places]
	current atomic.Pointer[stretch]

	mu     sync.Mutex // guards changes of current, and what follows
	member member
}

// Use is what was taken from a share: see [Shares.Return]. The zero value is nothing.
type Use struct {
	limit  *Limit
	tokens int64
	after  time.Duration // what the place said then
}

// Empty reports whether u is nothing.
func (u Use) Empty() bool { return u.limit == nil }

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
	z     []atomic.Int64
}

// place returns the place of a key.
func (s *Shares) place(hash uint64) *atomic.Int64 {
	p := s.places.Load()
	return &p.z[hash>>p.shift]
}

// Take takes n ≥ 1 tokens from the share of a key, all or nothing, and returns how many are left. hash is of the key and
// its policy. Take never blocks and does not allocate.
func (s *Shares) Take(now time.Duration, hash uint64, l *Limit, n int64) (left int64, u Use, ok bool) {
	c := s.stretch()
	if now >= c.end || c.fraction == 0 || n > l.size {
		return 0, Use{}, false
	}
	v, cost := c.at(now), time.Duration(n)*l.token
	empty, place := c.empty(v, l), s.place(hash)
	for {
		z := place.Load()
		after := max(time.Duration(z), empty) + cost
		if after > v {
			return 0, Use{}, false
		}
		if place.CompareAndSwap(z, int64(after)) {
			return int64((v - after) / l.token), Use{l, n, after}, true
		}
	}
}

// Return puts n tokens of a use back, as if they had not been taken. It reports false, and puts nothing back, if the place
// was used since. A share that has begun anew since then gets nothing.
func (s *Shares) Return(hash uint64, u Use, n int64) bool {
	if n > u.tokens {
		return false
	}
	back := u.after - time.Duration(n)*u.limit.token
	return s.place(hash).CompareAndSwap(int64(u.after), int64(back))
}

// Empty takes all that a key's share has, and no [Use] of before is put back any more. A key needs it whose limit changes:
// the virtual time that it did not use, or that is put back, would be more tokens of a faster limit.
func (s *Shares) Empty(now time.Duration, hash uint64) {
	c := s.stretch()
	v, place := int64(c.at(now)), s.place(hash)
	for z := place.Load(); !place.CompareAndSwap(z, max(z+1, v)); z = place.Load() {
	}
}

// Level returns how many tokens the share of a key has now.
func (s *Shares) Level(now time.Duration, hash uint64, l *Limit) int64 {
	c := s.stretch()
	if now >= c.end || c.fraction == 0 {
		return 0
	}
	v := c.at(now)
	return max(int64((v-max(time.Duration(s.place(hash).Load()), c.empty(v, l)))/l.token), 0)
}

// Wait returns how long it takes until the share of a key has n tokens, if nobody takes any: [math.MaxInt64] if it never
// has so many.
func (s *Shares) Wait(now time.Duration, hash uint64, l *Limit, n int64) time.Duration {
	c := s.stretch()
	if now >= c.end || c.fraction == 0 || n > l.size || time.Duration(n)*l.token > scale(l.fill, c.fraction) {
		return math.MaxInt64
	}
	v := c.at(now)
	z := max(time.Duration(s.place(hash).Load()), c.empty(v, l))
	return c.real(z + time.Duration(n)*l.token - v)
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
