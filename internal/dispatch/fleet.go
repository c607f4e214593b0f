package dispatch

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

const (
	// PresencePeriod is the time from one refresh of a process' presence at a node to the next. A
	// refresh gives the clock of a node that is otherwise idle, and the number of processes.
	PresencePeriod = 3 * time.Second

	// fleetMemory is how long the largest number of processes counts. Too small a number is the
	// dangerous side, because a process divides by it what it may admit while Redis does not
	// answer. A node that has lost its processes, or whose slots move, hears of all of them again
	// within two periods.
	fleetMemory = PresenceTTL
)

// fleet is the number of processes that share limits at a node: the largest number of the answered
// refreshes within fleetMemory, and at least a configured minimum. It rises at once, falls after
// fleetMemory, and stays while the node does not answer.
//
// All methods may be called concurrently.
type fleet struct {
	min int64 // never changes

	mu      sync.Mutex
	seen    []census      // oldest first; processes falls strictly, so the first entry is the largest
	learned time.Duration // the last answered refresh

	max atomic.Int64 // seen[0].processes, or 0 while seen is empty; read without the mutex
}

// census is the number of processes that one refresh showed.
type census struct {
	at        time.Duration
	processes int64
}

// learn adds the number of an answered refresh.
func (f *fleet) learn(now time.Duration, processes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// The first process to come back after a long outage sees no other. The numbers from before the
	// outage keep counting until the others are back, as if there had been no silence.
	if silence := now - f.learned; silence > fleetMemory-2*PresencePeriod {
		for i := range f.seen {
			f.seen[i].at += silence
		}
	}
	f.learned = now
	for len(f.seen) > 0 && f.seen[len(f.seen)-1].processes <= processes {
		f.seen = f.seen[:len(f.seen)-1]
	}
	f.seen = append(f.seen, census{now, processes})
	for now-f.seen[0].at > fleetMemory {
		f.seen = f.seen[1:]
	}
	f.max.Store(f.seen[0].processes)
}

// size reports the number of processes, at least 1.
func (f *fleet) size() int64 { return max(f.max.Load(), f.min, 1) }

// fleets are the numbers of processes at one node: of all, and of those that have a policy of this
// process. The methods may be called concurrently.
type fleets struct {
	all      *fleet
	mu       sync.Mutex               // held while policies changes
	policies atomic.Pointer[[]*fleet] // by their places in what this process announces; nil is one that is not known
}

// newFleets returns fleets that are never smaller than min.
func newFleets(min int64) *fleets {
	f := &fleets{all: &fleet{min: min}}
	f.policies.Store(new([]*fleet))
	return f
}

// learn adds the numbers of an answered refresh. It returns the sizes of the policies' fleets
// before that.
func (f *fleets) learn(now time.Duration, c remote.Census) (before []int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// A process that announces nothing, because it has too many policies, knows of no policy how
	// many have it.
	policies := slices.Clone((*f.policies.Load())[:min(len(*f.policies.Load()), len(c.Policies))])
	for i := range c.Policies {
		before = append(before, f.size(i))
	}
	f.all.learn(now, c.Processes)
	for i, p := range c.Policies {
		if i == len(policies) {
			policies = append(policies, nil)
		}
		if policies[i] == nil {
			policies[i] = &fleet{min: f.all.min}
		}
		policies[i].learn(now, p.Processes)
	}
	f.policies.Store(&policies)
	return before
}

// forget forgets what is known of a place, because another policy has it now.
func (f *fleets) forget(place int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	policies := slices.Clone(*f.policies.Load())
	if place < len(policies) {
		policies[place] = nil
	}
	f.policies.Store(&policies)
}

// size reports how many processes have a policy, at least 1. If that is not known, because the node
// was not told of the policy yet, all processes count: too small a number is the dangerous side.
func (f *fleets) size(policy int) int64 {
	if policies := *f.policies.Load(); policy >= 0 && policy < len(policies) && policies[policy] != nil {
		return policies[policy].size()
	}
	return f.all.size()
}
