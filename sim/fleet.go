package sim

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// fleet is the processes of a run. Each has a slot: its place in the fleet, with a part of the traffic and a network. A
// process that is replaced leaves its slot to its successor.
type fleet struct {
	run *run

	mu      sync.Mutex
	slots   []*process // nil where there is none
	version int        // rises when slots change
	number  int        // of the next process
	leaving sync.WaitGroup
	errs    []error
}

// process is one process of a service.
type process struct {
	number, slot int
	pause        pauseGate // shut while the process stands still
	dead         atomic.Bool
	instance

	sampling sync.Mutex // keeps samples in the order in which they were true
}

// instance is what an engine runs as a process. Its methods may be called concurrently, except crash, leave and end.
type instance interface {
	// decide makes a request, whose caller gives up after leave; 0 means never. It returns when the request came to the
	// process and how long the decision took. told is false if the process ended before it could answer.
	decide(limit int, key string, cost int64, leave time.Duration) (d tiered.Decision, came, took time.Duration,
		told bool)
	// stats returns the process' figures, nil if it does not report any.
	stats() *tiered.Stats
	// busy reports whether calls to Redis are under way.
	busy() bool

	// stop suspends the process and resume continues it. Its pause gate is shut meanwhile.
	stop()
	resume()

	// crash ends the process at once, with all that it holds. leave shuts it down in good order, and blocks. Both
	// return its last figures, nil if they are unknown.
	crash() *tiered.Stats
	leave() *tiered.Stats
	// end cleans up after either, and waits for what is left.
	end() error
}

// leaveTime is the time for a shutdown in good order. After it the process is killed.
const leaveTime = 10 * time.Second

// start starts a process in a slot, in place of the one that is there.
func (f *fleet) start(slot int) error {
	f.mu.Lock()
	p := &process{number: f.number, slot: slot}
	// ns: processes that one fault paused continue at different instants
	p.pause.offset = time.Duration(f.number % 1000)
	f.number++
	f.mu.Unlock()
	var err error
	if p.instance, err = f.run.engine.start(p); err != nil {
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

// at returns the process in a slot, or nil.
func (f *fleet) at(slot int) *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slot >= len(f.slots) {
		return nil
	}
	return f.slots[slot]
}

// live returns all processes by slot. The version changes when one of them does.
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

// changed reports whether the fleet differs from that of a version.
func (f *fleet) changed(version int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version != version
}

// take empties a slot and returns the process that was there.
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

// leave shuts a process down in good order. Its successor may be there already.
func (f *fleet) leave(p *process) {
	f.leaving.Go(func() {
		f.died(p, p.leave())
		f.note(p.end())
	})
}

// died records that a process has ended, and its last figures.
func (f *fleet) died(p *process, s *tiered.Stats) {
	f.run.died(p, s)
	p.dead.Store(true)
	p.pause.open() // a paused process can be killed too
}

// note keeps an error for close.
func (f *fleet) note(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, err)
}

// close shuts down all processes, and waits for all that ever ran.
func (f *fleet) close() error {
	all, _ := f.live()
	for _, p := range all {
		f.take(p.slot)
		p.pause.open()
		f.leave(p)
	}
	f.leaving.Wait()
	return errors.Join(f.errs...)
}
