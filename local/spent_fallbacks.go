package local

import (
	"math"
	"sync/atomic"
	"time"
)

// spentBits is the logarithm of the number of places: 1 MB, once a key was evicted whose fallback
// was not full.
const spentBits = 17

// SpentFallbacks remembers what evicted keys have used of their fallbacks, so that a key that
// MaxKeys pushes out in an outage does not come back with a full one. A key has a place, by its
// hash, with the time at which its fallback is full again. Keys that meet in a place count as the
// one that is full last, which is stricter than their limits.
//
// The zero value remembers nothing yet. The methods may be called concurrently.
type SpentFallbacks struct {
	Salt   uint64                                       // of the hashes: nobody who names keys may know it
	places atomic.Pointer[[1 << spentBits]atomic.Int64] // of usage
}

// usage is until when a fallback is not full, in ms since the base, and in the lowest bits how long
// an empty one takes to be full: its limit may be another when its key comes back, and then the
// time alone does not tell what is missing. That is a logarithm. Both are rounded to the strict
// side.
type usage int64

const (
	fillBits   = 20
	fillSteps  = 1 << 13                   // of the logarithm for each doubling
	latestFull = math.MaxInt64 >> fillBits // ms: 278 years. What is full later is taken for empty
)

func usageOf(full time.Duration, fill float64) usage {
	ms := int64(latestFull)
	if full < latestFull*time.Millisecond {
		ms = int64((full + time.Millisecond - 1) / time.Millisecond)
	}
	log := min(max(math.Floor(math.Log2(fill)*fillSteps), 0), 1<<fillBits-1)
	return usage(ms<<fillBits | int64(log))
}

// left returns how long the fallback is not full yet, 0 or less if it is, and which part of it is
// missing by the limit of then, 1 or more if all of it is.
func (u usage) left(now time.Duration) (wait time.Duration, part float64) {
	ms := int64(u >> fillBits)
	if wait = time.Duration(ms)*time.Millisecond - now; ms == latestFull {
		return wait, 1
	}
	return wait, float64(wait) / math.Exp2(float64(u&(1<<fillBits-1))/fillSteps)
}

func (s *SpentFallbacks) place(id ID) *atomic.Int64 {
	return &s.places.Load()[Hash(s.Salt, id)>>(64-spentBits)]
}

// keep notes what an evicted key has used.
func (s *SpentFallbacks) keep(id ID, u usage) {
	if s.places.Load() == nil {
		s.places.CompareAndSwap(nil, new([1 << spentBits]atomic.Int64))
	}
	p := s.place(id)
	for z := p.Load(); z < int64(u) && !p.CompareAndSwap(z, int64(u)); {
		z = p.Load()
	}
}

// of returns what a key has used. Of a key that is not remembered that is nothing.
func (s *SpentFallbacks) of(id ID) usage {
	if s.places.Load() == nil {
		return 0
	}
	return usage(s.place(id).Load())
}
