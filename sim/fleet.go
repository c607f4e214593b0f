package sim

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// fleet is the processes of a run. Each has a slot: the place of a process in the fleet, with its part of the traffic and its
// network. A process that is replaced leaves its slot to its successor.
type fleet struct {
	run *run

	mu      sync.Mutex
	slots   []*process // nil where there is none
	version int        // rises when slots change
	number  int        // of the next process
	leaving sync.WaitGroup
	errs    []error
}

// process is one process of a service, as the driver sees it.
type process struct {
	number, slot int
	still        gate // shut while the process stands still
	dead         atomic.Bool
	body

	sampling sync.Mutex // so that its figures are noted in the order in which they were true
}

// body is what an engine makes of a process. Its methods may be called concurrently, but for crash, leave and end.
type body interface {
	// decide has a request decided, whose caller leaves after a time, 0 for never. It reports when the request came to the
	// process and how long that took, and whether it lived to tell.
	decide(limit int, key string, cost int64, leave time.Duration) (d tiered.Decision, came, took time.Duration, told bool)
	// stats are the process' figures, nil when it does not tell.
	stats() *tiered.Stats
	// busy reports whether calls to Redis are under way.
	busy() bool

	// stop makes the process stand still, and resume go on. Its gate is shut all the while.
	stop()
	resume()

	// crash ends the process at once, with all that it holds; leave in good order, and blocks. Both return its last
	// figures, nil where nobody knows them.
	crash() *tiered.Stats
	leave() *tiered.Stats
	// end clears up after either, and waits for what is left.
	end() error
}

// leaveTime is what a process that is shut down has to give its leases back, before it is killed.
const leaveTime = 10 * time.Second

// start starts a process in a slot, in place of what is there.
func (f *fleet) start(slot int) error {
	f.mu.Lock()
	p := &process{number: f.number, slot: slot}
	p.still.own = time.Duration(f.number % 1000) // ns: those of one fault go on at one instant, and ask for the same keys
	f.number++
	f.mu.Unlock()
	var err error
	if p.body, err = f.run.world.start(p); err != nil {
		return err
	}
	f.run.joined(p)
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.slots) <= slot {
		f.slots = append(f.slots, nil)
	}
	f.slots[slot] = p
	f.version++
	return nil
}

// at is who is in a slot now, nil when nobody is.
func (f *fleet) at(slot int) *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slot >= len(f.slots) {
		return nil
	}
	return f.slots[slot]
}

// live returns the processes there are, by slot. The version changes when any of them does.
func (f *fleet) live() (all []*process, version int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.slots {
		if p != nil {
			all = append(all, p)
		}
	}
	return all, f.version
}

// changed reports whether the fleet is another than at a version.
func (f *fleet) changed(version int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version != version
}

// take empties a slot and returns who was there.
func (f *fleet) take(slot int) *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slot >= len(f.slots) || f.slots[slot] == nil {
		return nil
	}
	p := f.slots[slot]
	f.slots[slot] = nil
	f.version++
	return p
}

// crash ends the process in a slot at once, with all that it holds.
func (f *fleet) crash(slot int) {
	p := f.take(slot)
	if p == nil {
		return
	}
	f.died(p, p.crash())
	f.leaving.Go(func() { f.note(p.end()) })
}

// leave shuts down the process in a slot in good order. Its successor may be there already: p is who leaves.
func (f *fleet) leave(p *process) {
	f.leaving.Go(func() {
		f.died(p, p.leave())
		f.note(p.end())
	})
}

// died notes that a process has ended, and with which figures.
func (f *fleet) died(p *process, s *tiered.Stats) {
	f.run.died(p, s)
	p.dead.Store(true)
	p.still.open() // a process that stands still can be killed too
}

// note notes an error.
func (f *fleet) note(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, err)
}

// close shuts down all that are left, and waits for all that ever were.
func (f *fleet) close() error {
	all, _ := f.live()
	for _, p := range all {
		f.take(p.slot)
		p.still.open()
		f.leave(p)
	}
	f.leaving.Wait()
	return errors.Join(f.errs...)
}
