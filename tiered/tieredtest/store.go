package tieredtest

import (
	"errors"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Store takes the place of Redis under a whole service: give it to the code that makes the
// service's Group or Limiters, as many as it has. It counts in memory as Redis does. Two services
// on one Store are two replicas. All methods may be called concurrently. In a bubble of
// testing/synctest its time is that of the bubble.
type Store struct {
	*remote.Memory // its other methods; Fail differs
}

// NewStore returns an empty Store.
func NewStore() *Store { return &Store{remote.NewMemory()} }

// errDown is what every call to Redis answers after Fail.
var errDown = errors.New("tieredtest: connection refused")

// Fail makes Redis fail, for all that use the Store: from now on each policy's FailMode decides
// over what is not leased, and not known to be over its limit.
func (s *Store) Fail() { s.Memory.Fail(errDown) }

// Heal ends Fail. Redis decides again within a second of requests, or within three seconds without
// any: let four pass. Heal before the service closes its Group, which otherwise tries to give its
// leases back until they or its context end.
func (s *Store) Heal() { s.Memory.Fail(nil) }
