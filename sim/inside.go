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

// inside is a process in the bubble: a way to Redis, a Group, and nothing in common with the others.
type inside struct {
	*process
	port     *port
	group    *tiered.Group
	limiters []*tiered.Limiter // as in Scenario.Limits
	leaving  atomic.Bool
	left     bool // in good order
}

// newInside starts one; open is the world's way to open its store.
func (r *run) newInside(p *process, open func(number, slot int) (remote.Store, error)) (body, error) {
	store, err := open(p.number, p.slot)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("process %d", p.number)
	in := &inside{process: p}
	in.port = &port{Store: store, process: p, run: r, forgets: in.forgets}
	in.port.dice.calls = newDice(r.seed, name+", timeouts", r.base)
	in.port.dice.presence = newDice(r.seed, name+", presence", r.base)
	in.port.dice.turns = newDice(r.seed, name+", turns", r.base)
	options := r.options
	options.Logger = slog.New(slog.DiscardHandler) // a run reports what happens
	options.Random = newDice(r.seed, name+", limiter", r.base).uniform
	options.Trace = &tiered.Trace{State: func(e tiered.StateEvent) { r.breaker(r.at(), p, e.To) }}
	if in.group, err = tiered.NewGroup(in.port, &options); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	for _, policy := range r.policies {
		l, limiterErr := in.group.Limiter(policy)
		in.limiters, err = append(in.limiters, l), errors.Join(err, limiterErr)
	}
	return in, err
}

func (in *inside) decide(limit int, key string, cost int64, leave time.Duration) (d tiered.Decision, came, took time.Duration, told bool) {
	ctx := context.Background()
	if leave > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, leave)
		defer cancel()
	}
	in.port.enter()
	came = in.port.run.at()
	d = in.limiters[limit].AllowN(ctx, key, cost)
	in.still.pass()
	return d, came, in.port.run.at() - came, true
}

func (in *inside) stats() *tiered.Stats {
	s := in.group.Stats()
	return &s
}

func (in *inside) forgets() bool {
	s := in.group.Stats()
	forgiven := false // of a key that Redis refuses
	for _, p := range s.Policies {
		forgiven = forgiven || p.Forgiven > 0
	}
	return in.leaving.Load() || s.Evictions > 0 || forgiven
}

func (in *inside) busy() bool { return in.port.calls.Load() > 0 }

// stop and resume do nothing: whatever the process does passes its gate.
func (in *inside) stop()   {}
func (in *inside) resume() {}

// crash lets it be: who is dead reaches nobody.
func (in *inside) crash() *tiered.Stats {
	in.port.run.audit.gone(in.number, false)
	return in.stats()
}

func (in *inside) leave() *tiered.Stats {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	in.leaving.Store(true)
	err := in.group.Close(ctx) // without Redis it fails, as it should
	in.port.run.audit.gone(in.number, err == nil)
	in.left = true
	return in.stats()
}

// end closes the store, once nobody uses it.
func (in *inside) end() error {
	if !in.left {
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		in.leaving.Store(true)
		_ = in.group.Close(gone) // it cannot give anything back
	}
	for in.busy() {
		time.Sleep(time.Millisecond)
	}
	return in.port.Store.Close()
}
