package local

import (
	"sync/atomic"
	"time"
)

// pot holds the tokens of a lease that nobody has taken yet. Takers remove tokens without the
// bucket's mutex. Everything else changes under it. The zero value is an empty pot whose lease is
// over.
//
// The order of the fields matters: a decision reads the first three, and three times in four they
// share a cache line.
type pot struct {
	tokens   atomic.Int64 // invariant: tokens ≥ 0. Only refill adds to it, only after it has burnt what is over
	deadline atomic.Int64 // ns since the base: no token is spent from here on. Invariant: the lease in Redis ends later
	low      atomic.Int64 // low-water mark: a pot with no more tokens is renewed

	// renewAt is in ns since the base: no renewal before then. It is never while a call is queued
	// or under way.
	renewAt atomic.Int64

	// generation changes whenever a call is sent and whenever the pot is emptied. Tokens that were
	// taken in an older generation must not go back into the pot: Redis counts them as spent. The
	// low callBits bits count; the bits above them count the lease ids that the bucket has had.
	// Invariant: it never falls.
	generation atomic.Int64
}

// callBits is the number of low bits of a generation. The bits above them count the lease ids: what
// was taken under an older one is not given back.
const callBits = 40

// take removes n tokens and reports what is left. It reports false if the lease is over or the pot
// holds fewer.
//
// It swaps and does not add, because a renewal could see a pot that Add has lowered and then raised
// again.
func (p *pot) take(now time.Duration, n int64) (left int64, ok bool) {
	for {
		v := p.tokens.Load()
		if v < n || p.over(now) {
			return v, false
		}
		if p.tokens.CompareAndSwap(v, v-n) {
			return v - n, true
		}
	}
}

// takeUpTo removes up to n tokens and reports how many, none if the lease is over.
func (p *pot) takeUpTo(now time.Duration, n int64) (taken int64) {
	for !p.over(now) {
		v := p.tokens.Load()
		if taken = min(v, n); p.tokens.CompareAndSwap(v, v-taken) {
			return taken
		}
	}
	return 0
}

// over reports whether the lease has ended.
func (p *pot) over(now time.Duration) bool { return int64(now) >= p.deadline.Load() }

// live reports the tokens that may still be spent.
func (p *pot) live(now time.Duration) int64 {
	if p.over(now) {
		return 0
	}
	return p.tokens.Load()
}

// renewable reports whether a pot with so many tokens left is at its low-water mark and a renewal
// may be asked for.
func (p *pot) renewable(now time.Duration, left int64) bool {
	return left <= p.low.Load() && int64(now) >= p.renewAt.Load()
}

// empty takes all tokens out and reports how many there were.
func (p *pot) empty() int64 {
	n := p.tokens.Swap(0)
	p.generation.Add(1)
	return n
}

// refill adds a grant and sets when the lease ends. It reports the tokens that it burns: those of a
// lease that is over must not come to life again with the new deadline, because the call did not
// state them and others may have them now.
func (p *pot) refill(now time.Duration, grant int64, end time.Duration) (burnt int64) {
	if p.over(now) {
		burnt = p.empty()
	}
	p.tokens.Add(grant)
	p.deadline.Store(int64(end))
	return burnt
}

// endBy ends the lease at a time, unless it ends earlier.
func (p *pot) endBy(end time.Duration) {
	if p.deadline.Load() > int64(end) {
		p.deadline.Store(int64(end))
	}
}

// callSent notes that a call was sent: it states what was spent so far, and no renewal is wanted
// until it ends.
func (p *pot) callSent() {
	p.generation.Add(1)
	p.renewAt.Store(never)
}

// newIdentity notes that the process has a new lease id.
func (p *pot) newIdentity() {
	p.generation.Store((p.generation.Load()>>callBits + 1) << callBits)
}

// sameIdentity reports whether a generation belongs to the lease id of today.
func (p *pot) sameIdentity(generation int64) bool {
	return generation>>callBits == p.generation.Load()>>callBits
}
