package local

import (
	"sync/atomic"
	"time"
)

// spentBits is the logarithm of the number of places: 1 MB, once a key was evicted whose share was not full.
const spentBits = 17

// SpentShares remembers what evicted keys have used of their shares, so that a key that MaxKeys pushes out in an outage
// does not come back with a full one. A key has a place, by its hash, with the time at which its share is full again.
// Keys that meet in a place count as the one that used more, which is stricter than their limits.
//
// The zero value remembers nothing yet. The methods may be called concurrently.
type SpentShares struct {
	Salt   uint64 // of the hashes: nobody who names keys may know it
	places atomic.Pointer[[1 << spentBits]atomic.Int64]
}

func (s *SpentShares) place(id ID) *atomic.Int64 {
	return &s.places.Load()[Hash(s.Salt, id)>>(64-spentBits)]
}

// keep notes when the share of an evicted key is full again.
func (s *SpentShares) keep(id ID, full time.Duration) {
	if s.places.Load() == nil {
		s.places.CompareAndSwap(nil, new([1 << spentBits]atomic.Int64))
	}
	p := s.place(id)
	for z := p.Load(); z < int64(full) && !p.CompareAndSwap(z, int64(full)); {
		z = p.Load()
	}
}

// full returns when the share of a key is full again. Of a key that is not remembered it is full now.
func (s *SpentShares) full(id ID) time.Duration {
	if s.places.Load() == nil {
		return 0
	}
	return time.Duration(s.place(id).Load())
}

// keepShare remembers what a bucket that is about to be closed has used of its share. It does so under every fail mode,
// because the mode of now need not be that in which the key comes back: a removed policy fails closed. The bucket's
// mutex is held.
func (b *Bucket) keepShare(now time.Duration) {
	p := b.Policy()
	if p.Spent == nil || b.view.fleet == 0 || b.life == closed {
		return
	}
	if wait := b.share.untilFull(now); wait > 0 {
		p.Spent.keep(b.ID(), later(now, wait))
	}
}

// recallShare takes out of a new share what the key had used of it before it was evicted.
func (b *Bucket) recallShare(now time.Duration) {
	if p := b.Policy(); p.Spent != nil {
		b.share.drain(now, p.Spent.full(b.ID())-now)
	}
}

// untilFull returns in how long the share is full.
func (s *share) untilFull(now time.Duration) time.Duration {
	missing := float64(s.limiter.Burst()) - s.tokens(now)
	return time.Duration(min(missing/float64(s.limiter.Limit())*float64(time.Second), float64(never)))
}

// drain takes as much as the share refills in a time.
func (s *share) drain(now, refill time.Duration) {
	if refill > 0 {
		s.debit(now, int64(min(float64(s.limiter.Limit())*refill.Seconds(), float64(s.limiter.Burst()))+1))
	}
}
