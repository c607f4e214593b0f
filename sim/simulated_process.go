package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// simulatedProcess is a process in virtual time: a store and a Group of its own. It shares nothing with the others.
type simulatedProcess struct {
	*process
	store    *processStore
	group    *tiered.Group
	limiters []*tiered.Limiter // as in Scenario.Limits
	leaving  atomic.Bool
	left     bool // in good order
}

// newSimulatedProcess starts a process. open is how the engine opens its store.
func (r *run) newSimulatedProcess(p *process, open func(number, slot int) (remote.Store, error)) (instance, error) {
	store, err := open(p.number, p.slot)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("process %d", p.number)
	in := &simulatedProcess{process: p}
	in.store = &processStore{Store: store, process: p, run: r, forgets: in.forgets}
	in.store.random.calls = newConcurrentRand(r.seed, name+", timeouts", r.base)
	in.store.random.presence = newConcurrentRand(r.seed, name+", presence", r.base)
	in.store.random.order = newConcurrentRand(r.seed, name+", turns", r.base)
	options := r.options
	options.Logger = slog.New(slog.DiscardHandler) // a run reports what happens
	options.Random = newConcurrentRand(r.seed, name+", limiter", r.base).uniform
	options.Trace = &tiered.Trace{State: func(e tiered.StateEvent) { r.breaker(r.at(), p, e.To) }}
	if in.group, err = tiered.NewGroup(in.store, &options); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	for _, policy := range r.policies {
		l, limiterErr := in.group.NewLimiter(policy)
		in.limiters, err = append(in.limiters, l), errors.Join(err, limiterErr)
	}
	return in, err
}

func (in *simulatedProcess) decide(limit int, key string, cost int64, leave time.Duration) (d tiered.Decision, came,
	took time.Duration, told bool,
) {
	ctx := context.Background()
	if leave > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, leave)
		defer cancel()
	}
	in.store.enter()
	came = in.store.run.at()
	d = in.limiters[limit].AllowN(ctx, key, cost)
	in.pause.pass()
	return d, came, in.store.run.at() - came, true
}

func (in *simulatedProcess) stats() *tiered.Stats {
	s := in.group.Stats()
	return &s
}

// forgets reports whether the process may have given up debts: it leaves, has evicted a key, or has forgiven some.
func (in *simulatedProcess) forgets() bool {
	s := in.group.Stats()
	forgiven := false // of a key that Redis refuses
	for _, p := range s.Policies {
		forgiven = forgiven || p.Forgiven > 0
	}
	return in.leaving.Load() || s.Evictions > 0 || forgiven
}

func (in *simulatedProcess) busy() bool { return in.store.underWay.Load() > 0 }

// stop and resume do nothing: all calls of the process pass its gate.
func (in *simulatedProcess) stop()   {}
func (in *simulatedProcess) resume() {}

// crash needs to stop nothing: the store of a dead process fails all calls.
func (in *simulatedProcess) crash() *tiered.Stats {
	in.store.run.audit.processEnded(in.number, false)
	return in.stats()
}

func (in *simulatedProcess) leave() *tiered.Stats {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	in.leaving.Store(true)
	err := in.group.Close(ctx) // fails without Redis, as it should
	in.store.run.audit.processEnded(in.number, err == nil)
	in.left = true
	return in.stats()
}

// end closes the store once nobody uses it.
func (in *simulatedProcess) end() error {
	if !in.left {
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		in.leaving.Store(true)
		_ = in.group.Close(gone) // it cannot return anything
	}
	for in.busy() {
		time.Sleep(time.Millisecond)
	}
	return in.store.Store.Close()
}
