package tieredtest

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Store takes the place of Redis under a whole service: give it to the code that makes the
// service's Group or Limiters, as many as it has. It counts in memory as Redis does. Two services
// on one Store are two replicas. All methods may be called concurrently. In a bubble of
// testing/synctest its time is that of the bubble.
type Store struct {
	*remote.Memory // its other methods; Fail differs

	rests atomic.Int64 // until then, ns since 1970
}

// NewStore returns an empty Store.
func NewStore() *Store { return &Store{Memory: remote.NewMemory()} }

// atWork is for how long before the end of a rest all processes say again that they are there, so
// that each knows how many they are.
const atWork = 10 * time.Second

// Advance lets d pass, for all that is in the bubble: a month takes far less than a second, unless
// goroutines of the test or standing shares have something to do meanwhile.
func (s *Store) Advance(d time.Duration) {
	s.rests.Store(time.Now().Add(d - atWork).UnixNano())
	time.Sleep(d)
}

// RestsUntil is for the limiters.
func (s *Store) RestsUntil() time.Time { return time.Unix(0, s.rests.Load()) }

// errDown is what every call to Redis answers after Fail.
var errDown = errors.New("tieredtest: connection refused")

// Fail makes Redis fail, for all that use the Store: from now on each policy's FailMode decides
// over what is not leased, and not known to be over its limit.
func (s *Store) Fail() { s.Memory.Fail(errDown) }

// Heal ends Fail. Redis decides again within a second of requests, or within three seconds without
// any: let four pass. Heal before the service closes its Group, which otherwise tries to give its
// leases back until they or its context end.
func (s *Store) Heal() { s.Memory.Fail(nil) }
