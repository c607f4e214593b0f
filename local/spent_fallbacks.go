package local

import (
	"sync/atomic"
	"time"
)

// spentBits is the logarithm of the number of places: 1 MB, once a key was evicted whose fallback was not full.
const spentBits = 17

// SpentFallbacks remembers what evicted keys have used of their fallbacks, so that a key that MaxKeys pushes out in an outage
// does not come back with a full one. A key has a place, by its hash, with the time at which its fallback is full again.
// Keys that meet in a place count as the one that used more, which is stricter than their limits.
//
// The zero value remembers nothing yet. The methods may be called concurrently.
type SpentFallbacks struct {
	Salt   uint64 // of the hashes: nobody who names keys may know it
	places atomic.Pointer[[1 << spentBits]atomic.Int64]
}

func (s *SpentFallbacks) place(id ID) *atomic.Int64 {
	return &s.places.Load()[Hash(s.Salt, id)>>(64-spentBits)]
}

// keep notes when the fallback of an evicted key is full again.
func (s *SpentFallbacks) keep(id ID, full time.Duration) {
	if s.places.Load() == nil {
		s.places.CompareAndSwap(nil, new([1 << spentBits]atomic.Int64))
	}
	p := s.place(id)
	for z := p.Load(); z < int64(full) && !p.CompareAndSwap(z, int64(full)); {
		z = p.Load()
	}
}

// full returns when the fallback of a key is full again. Of a key that is not remembered it is full now.
func (s *SpentFallbacks) full(id ID) time.Duration {
	if s.places.Load() == nil {
		return 0
	}
	return time.Duration(s.place(id).Load())
}

// keep remembers what the bucket id, which is about to be closed, has used of its fallback. It does so under every fail
// mode, because the mode of now need not be that in which the key comes back: a removed policy fails closed.
func (f *fallback) keep(now time.Duration, p *Policy, id ID) {
	if p.Spent == nil || f.limiter.Burst() == 0 {
		return
	}
	if wait := f.untilFull(now); wait > 0 {
		p.Spent.keep(id, later(now, wait))
	}
}

// untilFull returns in how long the fallback is full.
func (f *fallback) untilFull(now time.Duration) time.Duration {
	missing := float64(f.limiter.Burst()) - f.tokens(now)
	wait := missing / float64(f.limiter.Limit()) * float64(time.Second)
	if wait >= float64(never) { // one float64 above the longest time
		return never
	}
	return time.Duration(wait)
}

// drain takes as much as the fallback refills in a time.
func (f *fallback) drain(now, refill time.Duration) {
	if refill > 0 {
		f.debit(now, int64(min(float64(f.limiter.Limit())*refill.Seconds(), float64(f.limiter.Burst()))+1))
	}
}
