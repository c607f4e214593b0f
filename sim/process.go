package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// process is one process of a service: a store and a Group of its own. It shares nothing with the others.
type process struct {
	number, slot int
	pause        pauseGate // shut while the process stands still
	dead         atomic.Bool

	store    *store
	group    *tiered.Group
	limiters []*tiered.Limiter // as in Scenario.Limits
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
	options.Trace = &tiered.Trace{State: func(e tiered.StateEvent) { r.meter.Breaker(r.at(), number, e.To) }}
	var err error
	if p.group, err = tiered.NewGroup(p.store, &options); err != nil {
		return nil, errors.Join(err, p.store.Close())
	}
	for _, policy := range r.policies {
		l, limiterErr := p.group.NewLimiter(policy)
		p.limiters, err = append(p.limiters, l), errors.Join(err, limiterErr)
	}
	return p, err
}

// decide makes a request, whose caller gives up after leave; 0 means never. The process does not know before that it will:
// it answers a caller with a deadline sooner.
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

func (p *process) stats() *tiered.Stats {
	s := p.group.Stats()
	return &s
}

// busy reports whether calls to Redis are under way.
func (p *process) busy() bool { return p.store.underWay.Load() > 0 }

// leave shuts the process down in good order, and blocks.
func (p *process) leave() {
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
