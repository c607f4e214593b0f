package tiered

// simulated is what the store of a simulator has besides [remote.Store], so that a run repeats exactly: what is random here
// besides Options.Random, and an order for what happens at one instant of virtual time, which is else that of the
// processors. No store of package remote has it. Its methods may be called concurrently.
type simulated interface {
	// Entropy returns the next of a sequence of random numbers.
	Entropy() uint64

	// Settle returns when all else that is to happen now has happened: less than a microsecond of virtual time later. Those
	// who wait at one instant go on one after the other, by the number that each has for itself.
	Settle(order uint64)
}

// settle lets everything else that happens now happen first, in a simulation.
func (g *Group) settle(order uint64) {
	if g.simulated != nil {
		g.simulated.Settle(order)
	}
}
