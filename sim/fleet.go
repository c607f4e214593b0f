package sim

import "sync"

// fleet is the processes of a run. Each has a slot: its place in the fleet, with a part of the traffic and a network. A
// process that is replaced leaves its slot to its successor.
type fleet struct {
	run *run

	mu      sync.Mutex
	slots   []*process // nil where there is none
	version int        // rises when slots change
	number  int        // of the next process
	leaving sync.WaitGroup
}

// start starts a process in a slot, in place of the one that is there.
func (f *fleet) start(slot int) error {
	f.mu.Lock()
	number := f.number
	f.number++
	f.mu.Unlock()
	f.run.meter.Joined(f.run.at(), number)
	p, err := f.run.newProcess(number, slot)
	if err != nil {
		return err
	}
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
	f.died(p) // nothing has to be stopped: the store of a dead process fails all calls
	f.leaving.Go(func() { f.run.fail(p.end()) })
}

// leave shuts a process down in good order. Its successor may be there already.
func (f *fleet) leave(p *process) {
	f.leaving.Go(func() {
		p.leave()
		f.died(p)
		f.run.fail(p.end())
	})
}

// died records that a process has ended, and its last figures.
func (f *fleet) died(p *process) {
	f.run.meter.Sample(f.run.at(), p.number, p.stats(), true)
	f.run.meter.Died(f.run.at(), p.number)
	p.dead.Store(true)
	p.pause.open() // a paused process can be killed too
}

// close shuts down all processes, and waits for all that ever ran.
func (f *fleet) close() {
	all, _ := f.live()
	for _, p := range all {
		f.take(p.slot)
		p.pause.open()
		f.leave(p)
	}
	f.leaving.Wait()
}
