package engine

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Simulated is implemented by the store of a simulator, so that a run repeats exactly. It gives the
// random numbers that do not come from Options.Random, and an order to what happens at one instant
// of virtual time. Without it the processors decide that order. No store of package remote
// implements it. Its methods may be called concurrently.
type Simulated interface {
	// Entropy returns the next of a sequence of random numbers.
	Entropy() uint64

	// Yield returns when everything else that happens now has happened, at most about 1 µs of
	// virtual time later. Callers that wait at one instant go on one after the other, in the order
	// of their numbers.
	Yield(order uint64)

	// Sends is called before a call leaves for Redis, with the time since the Group's base and the
	// bucket. A simulator compares what the bucket holds with what Redis has on record. Sends may
	// only read b, and must not block.
	Sends(now time.Duration, c *lua.Call, b *local.Bucket)
}
