package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// fleet is the processes of a run. Each has a slot: its place in the fleet, with a part of the
// traffic and a network. A process that is replaced leaves its slot to its successor.
type fleet struct {
	run *run

	mu      sync.Mutex
	slots   []*process // nil where there is none
	number  int        // of the next process
	leaving sync.WaitGroup

	live atomic.Pointer[[]*process] // of slots, another one when they change
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
	f.set(slot, p)
	return nil
}

// set fills a slot, or empties it.
func (f *fleet) set(slot int, p *process) {
	f.slots[slot] = p
	live := slices.DeleteFunc(slices.Clone(f.slots), func(p *process) bool { return p == nil })
	f.live.Store(&live)
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

// take empties a slot and returns the process that was there.
func (f *fleet) take(slot int) *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slot >= len(f.slots) || f.slots[slot] == nil {
		return nil
	}
	p := f.slots[slot]
	f.set(slot, nil)
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
	f.run.meter.Sample(f.run.at(), p.number, p.group.Stats(), true)
	f.run.meter.Died(f.run.at(), p.number)
	p.dead.Store(true)
	p.pause.open() // a paused process can be killed too
}

// close shuts down all processes, and waits for all that ever ran.
func (f *fleet) close() {
	for _, p := range *f.live.Load() {
		f.take(p.slot)
		p.pause.open()
		f.leave(p)
	}
	f.leaving.Wait()
}

// process is one process of a service: a store and a Group of its own. It shares nothing with the
// others.
type process struct {
	number, slot int
	pause        pauseGate // shut while the process stands still
	dead         atomic.Bool

	store    *store
	group    *tiered.Group
	limiters []*tiered.Limiter // as in Scenario.Limits
	places   *atonce.Limiter   // nil if nothing runs
	running  atomic.Int64      // requests that have a place
	left     bool              // in good order
}

// leaveTime is the time for a shutdown in good order. After it the process is killed.
const leaveTime = 10 * time.Second

// newProcess starts a process in a slot.
func (r *run) newProcess(number, slot int) (*process, error) {
	p := &process{number: number, slot: slot}
	p.pause.offset = time.Duration(number % 1000) // ns: processes that one fault paused continue at different instants
	p.store = newStore(r, p)
	options := r.options
	options.Logger = slog.New(slog.DiscardHandler) // a run reports what happens
	options.Random = newConcurrentRand(r.seed, fmt.Sprintf("process %d, limiter", number), r.base).uniform
	options.Trace = &tiered.Trace{State: func(e tiered.Event) { r.meter.Breaker(r.at(), number, e.What) }}
	var err error
	if p.group, err = tiered.NewGroup(p.store, &options); err != nil {
		return nil, errors.Join(err, p.store.Close())
	}
	for _, policy := range r.policies {
		l, limiterErr := p.group.NewLimiter(policy)
		p.limiters, err = append(p.limiters, l), errors.Join(err, limiterErr)
	}
	if policy := r.atOnce; policy.Places > 0 {
		own := policy.Lost
		policy.Lost = func(key string, n int) {
			if r.meter.Happened(r.at(), "place_lost"); own != nil {
				own(key, n)
			}
		}
		var limiterErr error
		p.places, limiterErr = atonce.New(p.group, policy)
		err = errors.Join(err, limiterErr)
	}
	return p, err
}

// decide makes a request, whose caller gives up after leave; 0 means never. The process does not
// know before that it will: it answers a caller with a deadline sooner.
func (p *process) decide(limit int, key string, cost int64, leave time.Duration) tiered.Decision {
	ctx := context.Background()
	if leave > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(leave, cancel).Stop()
	}
	p.store.enter()
	d := p.limiters[limit].AllowN(ctx, key, cost)
	p.pause.pass()
	return d
}

// busy reports whether calls to Redis are under way.
func (p *process) busy() bool { return p.store.underWay.Load() > 0 }

// leave shuts the process down in good order, when all that runs has ended, and blocks.
func (p *process) leave() {
	for p.running.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	_ = p.group.Close(ctx) // fails without Redis, as it should
	p.left = true
}

// end cleans up after a process that left or crashed. It closes the store once nobody uses it.
func (p *process) end() error {
	if !p.left {
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.group.Close(gone) // it cannot return anything
	}
	for p.busy() {
		time.Sleep(time.Millisecond)
	}
	return p.store.Close()
}
