package sim

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// port is the store that a process' Group has: the world's, with what belongs to the process and not to the world. It stands
// still with the process, and dies with it.
type port struct {
	remote.Store
	*process
	run   *run
	dice  *dice
	drawn atomic.Uint64
	calls atomic.Int64 // under way

	forgets func() bool // whether the Group ever let go of a key
}

// errDead is what a process that died would never see.
var errDead = errors.New("sim: the process is dead")

// slack is the most by which a call outlasts its timeout: the Group's own timer ends at the same instant, and which of the
// two were first the processors would say. In a real process it is the Group's, which starts first.
const slack = time.Microsecond

func (p *port) slack() time.Duration {
	return time.Nanosecond + time.Duration(p.dice.uniform()*float64(slack))
}

// Run executes calls; see remote.Store.
func (p *port) Run(ctx context.Context, timeout time.Duration, calls []remote.Call, results []remote.Result) {
	p.calls.Add(1)
	defer p.calls.Add(-1)
	if p.still.pass(); p.dead.Load() {
		fail(results[:len(calls)], errDead)
		return
	}
	sent := p.run.at()
	p.run.called(sent, p.number, len(calls))
	p.Store.Run(ctx, timeout+p.slack(), calls, results)
	for i := range calls {
		if short(&calls[i], &results[i]) {
			p.run.happened("short_grant")
		}
	}
	p.still.pass()
	p.run.audit.returned(p.number, p.run.at()-sent, calls, results)
}

// Sends tells the auditor of a call.
func (p *port) Sends(now time.Duration, c *remote.Call, b *local.Bucket) {
	p.run.audit.sent(p.number, now, c, b, p.forgets)
}

// short reports whether a call was granted less than it wanted.
func short(c *remote.Call, r *remote.Result) bool {
	return r.Err == nil && r.Reply.Code == remote.Granted && r.Reply.Grant < c.Want
}

// Presence says that a process is here; see remote.Store.
func (p *port) Presence(
	ctx context.Context, timeout time.Duration, node remote.Node, id string, ttl time.Duration,
) (remote.Census, error) {
	if p.still.pass(); p.dead.Load() {
		return remote.Census{}, errDead
	}
	c, err := p.Store.Presence(ctx, timeout+p.slack(), node, id, ttl)
	p.still.pass()
	if err == nil && ttl > 0 { // who takes leave hears of nobody
		p.run.audit.counted(p.number, c.Processes)
	}
	return c, err
}

// Settle lets all else that happens now happen first; see Group. Who has no number gets one that depends on the instant.
func (p *port) Settle(order uint64) {
	if order == 0 {
		order = uint64(p.dice.uniform() * (1 << 53))
	}
	time.Sleep(1 + time.Duration(mix(order)%uint64(slack)))
}

// Entropy is where a Group has from what is random besides its Options.
func (p *port) Entropy() uint64 {
	return mix(mix(p.run.seed^hash("entropy")) + mix(uint64(p.number)) + p.drawn.Add(1))
}
