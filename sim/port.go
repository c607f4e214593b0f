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

// port is the store that a process' Group has: the world's, with what belongs to the process and not to the world. It stands
// still with the process, and dies with it.
type port struct {
	remote.Store
	*process
	run   *run
	dice  struct{ calls, presence, turns *dice } // who draws at one instant may swap what he gets only with his like
	drawn atomic.Uint64
	turns turns
	calls atomic.Int64 // under way

	forgets func() bool // whether the Group ever let go of a key
}

// errDead is what a process that died would never see.
var errDead = errors.New("sim: the process is dead")

// slack draws by how much a call outlasts its timeout.
func (d *dice) slack() time.Duration {
	return time.Nanosecond + time.Duration(d.uniform()*float64(slack))
}

// Run executes calls; see remote.Store.
func (p *port) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	p.calls.Add(1)
	defer p.calls.Add(-1)
	if p.still.pass(); p.dead.Load() {
		fail(results[:len(calls)], errDead)
		return
	}
	p.run.called(p.run.at(), p.number, len(calls))
	p.Store.Run(ctx, timeout+p.dice.calls.slack(), calls, results)
	for i := range calls {
		if short(&calls[i], &results[i]) {
			p.run.happened("short_grant")
		}
		if err := unasked(&results[i]); err != nil {
			p.run.fail(err)
		}
	}
	p.still.pass()
	p.Settle(number(&calls[0])) // when Redis dies all calls return at one instant, and its presence
	p.run.audit.returned(p.number, calls, results)
}

// number is what a call has that no other has which a process makes meanwhile.
func number(c *lua.Call) uint64 {
	return stable.Mix(stable.Hash(c.Bucket)^uint64(c.Now)) + stable.Mix(uint64(c.Seq)) | 1
}

// Sends tells the auditor of a call.
func (p *port) Sends(now time.Duration, c *lua.Call, b *local.Bucket) {
	p.run.audit.sent(p.number, now, c, b, p.forgets)
}

// unasked is why a run cannot be trusted: a call was refused, and no scenario has Redis refuse it. A bucket of another type is what
// scenarios ask for.
func unasked(r *remote.Result) error {
	if !watch.Refused(r.Err) || strings.Contains(r.Err.Error(), "WRONGTYPE") {
		return nil
	}
	return fmt.Errorf("sim: redis refuses a call that nobody disturbed: %w", r.Err)
}

// short reports whether a call was granted less than it wanted.
func short(c *lua.Call, r *remote.Result) bool {
	return r.Err == nil && r.Reply.Code == lua.Granted && r.Reply.Grant < c.Want
}

// Presence says that a process is here; see remote.Store.
func (p *port) Presence(
	ctx context.Context, timeout time.Duration, node remote.Node, id string, ttl time.Duration,
) (remote.Census, error) {
	p.calls.Add(1)
	defer p.calls.Add(-1)
	if p.still.pass(); p.dead.Load() {
		return remote.Census{}, errDead
	}
	c, err := p.Store.Presence(ctx, timeout+p.dice.presence.slack(), node, id, ttl)
	p.still.pass()
	p.Settle(stable.Hash("presence"))
	if err == nil && ttl > 0 { // who takes leave hears of nobody
		p.run.audit.counted(p.number, c.Processes)
	}
	return c, err
}

// Settle lets all else that happens now happen first; see Group. Who has no number gets one that depends on the instant.
func (p *port) Settle(order uint64) {
	if order == 0 {
		order = uint64(p.dice.turns.uniform() * (1 << 53))
	}
	w := p.turns.join(p.run.at(), order)
	time.Sleep(time.Nanosecond) // by then all have joined who do at this instant
	p.run.sleepUntil(p.turns.wait(p.run.at(), w))
}

// enter lets in a caller, when nobody has his turn.
func (p *port) enter() {
	now := p.run.at()
	if at := p.turns.enter(now); at > now {
		time.Sleep(at - now)
	}
}

// Entropy is where a Group has from what is random besides its Options.
func (p *port) Entropy() uint64 {
	return stable.Mix(stable.Mix(p.run.seed^stable.Hash("entropy")) + stable.Mix(uint64(p.number)) + p.drawn.Add(1))
}
