package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// process is what a process of a service has: a way to Redis, a Group, and nothing in common with the others.
type process struct {
	number, slot int
	port         *port
	group        *tiered.Group
	limiters     []*tiered.Limiter // as in Scenario.Limits
}

// leaveTime is what a process that is shut down has to give its leases back, before it is killed.
const leaveTime = 10 * time.Second

// start starts a process in a slot, in place of what is there.
func (f *fleet) start(slot int) error {
	r := f.run
	f.mu.Lock()
	number := f.number
	f.number++
	f.mu.Unlock()
	store, err := r.world.open(number, slot)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("process %d", number)
	p := &process{number: number, slot: slot}
	p.port = &port{Store: store, run: r, number: number, dice: newDice(r.seed, name+", timeouts", r.base)}
	options := r.options
	options.Random = newDice(r.seed, name+", limiter", r.base).uniform
	options.Trace = &tiered.Trace{State: func(e tiered.StateEvent) { r.breaker(p, e.To) }}
	if p.group, err = tiered.NewGroup(p.port, &options); err != nil {
		return errors.Join(err, store.Close())
	}
	for _, policy := range r.policies {
		l, limiterErr := p.group.Limiter(policy)
		p.limiters, err = append(p.limiters, l), errors.Join(err, limiterErr)
	}
	r.joined(p)
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.slots) <= slot {
		f.slots = append(f.slots, nil)
	}
	f.slots[slot] = p
	f.version++
	return err
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

// size is the number of slots, and live are the processes there are, by slot. version changes when any of that does.
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
	f.run.died(p)
	p.port.dead.Store(true)
	p.port.still.open() // a process that stands still can be killed too
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	f.leaving.Go(func() {
		_ = p.group.Close(gone) // it cannot give anything back
		f.closeStore(p)
	})
}

// leave shuts down the process in a slot in good order. Its successor may be there already: p is who leaves.
func (f *fleet) leave(p *process) {
	f.leaving.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
		defer cancel()
		_ = p.group.Close(ctx) // without Redis it fails, as it should
		f.run.died(p)
		p.port.dead.Store(true)
		f.closeStore(p)
	})
}

// closeStore closes what the process' store opened, once nobody uses it.
func (f *fleet) closeStore(p *process) {
	for p.port.busy.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	if err := p.port.Store.Close(); err != nil {
		f.mu.Lock()
		f.errs = append(f.errs, err)
		f.mu.Unlock()
	}
}

// close shuts down all that are left, and waits for all that ever were.
func (f *fleet) close() error {
	all, _ := f.live()
	for _, p := range all {
		f.take(p.slot)
		p.port.still.open()
		f.leave(p)
	}
	f.leaving.Wait()
	return errors.Join(f.errs...)
}
