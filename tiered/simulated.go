package tiered

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// simulated is what the store of a simulator has besides [remote.Store], so that a run repeats exactly: what is random here
// besides Options.Random, and an order for what happens at one instant of virtual time, which is else that of the
// processors. No store of package remote has it. Its methods may be called concurrently.
type simulated interface {
	// Entropy returns the next of a sequence of random numbers.
	Entropy() uint64

	// Settle returns when all else that is to happen now has happened: about a microsecond of virtual time later at most. Those
	// who wait at one instant go on one after the other, in an order that follows from the number that each has for itself.
	Settle(order uint64)

	// Sends tells what is about to leave for Redis at a time since the Group's base, and whose it is. Looking at b is all
	// that it is for: a simulator compares what processes hold with what Redis has on record. It must not block.
	Sends(now time.Duration, c *lua.Call, b *local.Bucket)
}

// settle lets everything else that happens now happen first, in a simulation.
func (g *Group) yield(order uint64) {
	if g.simulated != nil {
		g.simulated.Settle(order)
	}
}
