package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
)

// store is the store of a process' Group: Redis behind a network. It stands still with the process,
// and fails every call once the process is dead. The Memory that it embeds holds nothing: it
// answers all that needs no message.
type store struct {
	*remote.Memory
	*connection
	run     *run
	process *process

	// only draws of one kind may swap their numbers at an instant
	calls, presence, claims, order *concurrentRand
	entropyDraws                   atomic.Uint64
	instants                       instants
	underWay                       atomic.Int64 // calls
}

func newStore(r *run, p *process) *store {
	random := func(purpose string) *concurrentRand {
		return newConcurrentRand(r.seed, fmt.Sprintf("process %d, %s", p.number, purpose), r.base)
	}
	return &store{
		Memory:     remote.NewMemory(),
		connection: &connection{network: r.network, number: p.number, link: r.network.links[p.slot], random: random("network")},
		run:        r, process: p,
		calls: random("timeouts"), presence: random("presence"), claims: random("claims"), order: random("turns"),
	}
}

// errDead is the error of a call by a dead process.
var errDead = errors.New("sim: the process is dead")

// slackened returns a timeout with the time by which a call outlasts it.
func (d *concurrentRand) slackened(timeout time.Duration) time.Duration {
	return timeout + time.Nanosecond + time.Duration(d.uniform()*float64(slack))
}

// Run executes calls as remote.Redis does: in a round trip, and until timeout; see remote.Store.
func (s *store) Run(_ context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	s.underWay.Add(1)
	defer s.underWay.Add(-1)
	results = results[:len(calls)]
	if s.process.pause.pass(); s.process.dead.Load() {
		fail(results, errDead)
		return
	}
	s.run.meter.Called(s.run.at(), s.number, len(calls))
	// The caller may be gone when the calls are executed, so the results are not written before
	// that is known.
	executed := make([]remote.Result, len(calls))
	err := s.roundTrip(s.calls.slackened(timeout), tokenBucket, func(m *remote.Memory, refusal error) {
		if refusal != nil {
			fail(executed, refusal)
			return
		}
		m.Run(context.Background(), timeout, calls, executed)
		for i := range executed {
			s.answered(&executed[i].Reply)
		}
	})
	if err != nil {
		fail(results, err)
	} else {
		copy(results, executed)
	}
	for i := range calls {
		if watch.Short(&calls[i], &results[i]) {
			s.run.meter.Happened(s.run.at(), "short_grant")
		}
		if err := unasked(&results[i]); err != nil {
			s.run.fail(err)
		}
	}
	s.process.pause.pass()
	s.Yield(number(&calls[0])) // when Redis dies all calls and the presence return at one instant
}

// answered records an executed call, of which its process may never hear.
func (s *store) answered(reply *lua.Reply) {
	switch at := s.run.at(); {
	case reply.Code == lua.Late:
		s.run.meter.Happened(at, "late_call") // most callers of such a call have given it up
	case reply.Code == lua.Stale:
		s.run.meter.Happened(at, "stale_reply")
	case reply.Code == lua.Granted && reply.Grant > 0:
		s.run.meter.Granted(at, s.number, reply.Grant)
	}
}

func fail(results []remote.Result, err error) {
	for i := range results {
		results[i] = remote.Result{Err: err}
	}
}

// number returns a number that no other call of the process has at the same time.
func number(c *lua.Call) uint64 {
	return stable.Mix(stable.Hash(c.Bucket)^uint64(c.Now)) + stable.Mix(uint64(c.Seq)) | 1
}

// unasked returns an error if a call was refused although the scenario has no such fault: the run
// cannot be trusted then. Scenarios do ask for buckets of another type.
func unasked(r *remote.Result) error {
	if !watch.Refused(r.Err) || strings.Contains(r.Err.Error(), "WRONGTYPE") {
		return nil
	}
	return fmt.Errorf("sim: redis refuses a call that nobody disturbed: %w", r.Err)
}

// Presence reports the process as present; see remote.Store.
func (s *store) Presence(
	_ context.Context, timeout time.Duration, node remote.Node, by remote.Process,
) (remote.Census, error) {
	s.underWay.Add(1)
	defer s.underWay.Add(-1)
	if s.process.pause.pass(); s.process.dead.Load() {
		return remote.Census{}, errDead
	}
	var counted remote.Census
	var refusal error
	err := s.roundTrip(s.presence.slackened(timeout), presence, func(m *remote.Memory, refused error) {
		if refusal = refused; refusal == nil {
			counted, refusal = m.Presence(context.Background(), timeout, node, by)
		}
	})
	var c remote.Census // without a reply counted and refusal still belong to a late execution
	if err == nil {
		c, err = counted, refusal
	}
	s.process.pause.pass()
	s.Yield(stable.Hash("presence"))
	return c, err
}

// Claim states what runs; see remote.Store.
func (s *store) Claim(_ context.Context, timeout time.Duration, c *lua.Claims, results []remote.ClaimResult) {
	s.underWay.Add(1)
	defer s.underWay.Add(-1)
	all := func(err error) {
		for i := range c.Each {
			results[i] = remote.ClaimResult{Err: err}
		}
	}
	if s.process.pause.pass(); s.process.dead.Load() {
		all(errDead)
		return
	}
	s.run.meter.Called(s.run.at(), s.number, 1)
	executed := make([]remote.ClaimResult, len(c.Each)) // not written after a timeout, as in Run
	var refusal error
	err := s.roundTrip(s.claims.slackened(timeout), atOnce, func(m *remote.Memory, refused error) {
		if refusal = refused; refusal == nil {
			m.Claim(context.Background(), timeout, c, executed)
		}
	})
	switch {
	case err != nil:
		all(err)
	case refusal != nil:
		all(refusal)
	default:
		copy(results, executed)
	}
	s.process.pause.pass()
	s.Yield(stable.Mix(stable.Hash("claim")+uint64(c.Each[0].Seq)) | 1)
}

// Yield waits until all else that happens at this instant has happened; see Group. A caller without
// a number gets one that depends on the instant.
func (s *store) Yield(order uint64) {
	if order == 0 {
		order = uint64(s.order.uniform() * (1 << 53))
	}
	w := s.instants.join(s.run.at(), order)
	time.Sleep(time.Nanosecond) // by then every caller of this instant has joined
	s.run.sleepUntil(s.instants.wait(s.run.at(), w))
}

// enter waits if the present instant is reserved.
func (s *store) enter() {
	now := s.run.at()
	if at := s.instants.enter(now); at > now {
		time.Sleep(at - now)
	}
}

// Sends does nothing: what a call must state is held against the invariants by other tests.
func (*store) Sends(time.Duration, *lua.Call, *local.Bucket) {}

// Entropy is the Group's source of random numbers beside its Options.
func (s *store) Entropy() uint64 {
	return stable.Mix(stable.Mix(s.run.seed^stable.Hash("entropy")) + stable.Mix(uint64(s.number)) + s.entropyDraws.Add(1))
}
