package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/watch"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
)

// processStore is the store of a process' Group: the engine's store, with what belongs to the process. It stands still
// with the process, and fails every call once the process is dead.
type processStore struct {
	remote.Store
	*process
	run *run
	// only draws of one kind may swap their numbers at an instant
	random       struct{ calls, presence, order *concurrentRand }
	entropyDraws atomic.Uint64
	instants     instants
	underWay     atomic.Int64 // calls

	forgets func() bool // whether the Group ever gave up a key
}

// errDead is the error of a call by a dead process.
var errDead = errors.New("sim: the process is dead")

// slack draws the time by which a call outlasts its timeout.
func (d *concurrentRand) slack() time.Duration {
	return time.Nanosecond + time.Duration(d.uniform()*float64(slack))
}

// Run executes calls; see remote.Store.
func (p *processStore) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	p.underWay.Add(1)
	defer p.underWay.Add(-1)
	if p.pause.pass(); p.dead.Load() {
		fail(results[:len(calls)], errDead)
		return
	}
	p.run.called(p.run.at(), p.number, len(calls))
	p.Store.Run(ctx, timeout+p.random.calls.slack(), calls, results)
	for i := range calls {
		if watch.Short(&calls[i], &results[i]) {
			p.run.happened("short_grant")
		}
		if err := unasked(&results[i]); err != nil {
			p.run.fail(err)
		}
	}
	p.pause.pass()
	p.Settle(number(&calls[0])) // when Redis dies all calls and the presence return at one instant
	p.run.audit.returned(p.number, calls, results)
}

// number returns a number that no other call of the process has at the same time.
func number(c *lua.Call) uint64 {
	return stable.Mix(stable.Hash(c.Bucket)^uint64(c.Now)) + stable.Mix(uint64(c.Seq)) | 1
}

// Sends shows a call to the audit.
func (p *processStore) Sends(now time.Duration, c *lua.Call, b *local.Bucket) {
	p.run.audit.sent(p.number, now, c, b, p.forgets)
}

// unasked returns an error if a call was refused although the scenario has no such fault: the run cannot be trusted
// then. Scenarios do ask for buckets of another type.
func unasked(r *remote.Result) error {
	if !watch.Refused(r.Err) || strings.Contains(r.Err.Error(), "WRONGTYPE") {
		return nil
	}
	return fmt.Errorf("sim: redis refuses a call that nobody disturbed: %w", r.Err)
}

// Presence reports the process as present; see remote.Store.
func (p *processStore) Presence(
	ctx context.Context, timeout time.Duration, node remote.Node, by remote.Process,
) (remote.Census, error) {
	p.underWay.Add(1)
	defer p.underWay.Add(-1)
	if p.pause.pass(); p.dead.Load() {
		return remote.Census{}, errDead
	}
	c, err := p.Store.Presence(ctx, timeout+p.random.presence.slack(), node, by)
	p.pause.pass()
	p.Settle(stable.Hash("presence"))
	if err == nil && by.TTL > 0 { // a process that leaves is told no number
		least := c.Processes
		for _, p := range c.Policies {
			least = min(least, p.Processes) // all simulated processes have the same policies
		}
		p.run.audit.counted(p.number, least)
	}
	return c, err
}

// Settle waits until all else that happens at this instant has happened; see Group. A caller without a number gets one
// that depends on the instant.
func (p *processStore) Settle(order uint64) {
	if order == 0 {
		order = uint64(p.random.order.uniform() * (1 << 53))
	}
	w := p.instants.join(p.run.at(), order)
	time.Sleep(time.Nanosecond) // by then every caller of this instant has joined
	p.run.sleepUntil(p.instants.wait(p.run.at(), w))
}

// enter waits if the present instant is reserved.
func (p *processStore) enter() {
	now := p.run.at()
	if at := p.instants.enter(now); at > now {
		time.Sleep(at - now)
	}
}

// Entropy is the Group's source of random numbers beside its Options.
func (p *processStore) Entropy() uint64 {
	return stable.Mix(stable.Mix(p.run.seed^stable.Hash("entropy")) + stable.Mix(uint64(p.number)) + p.entropyDraws.Add(1))
}
