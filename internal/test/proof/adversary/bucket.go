package adversary

import (
	"fmt"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/invariant"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// bucket is a local.Bucket, with what the adversary knows of it.
type bucket struct {
	local.Bucket
	process *process
	closed  bool // and dropped by the cache

	queued    bool
	checkAt   time.Duration
	call      *request // under way
	calls     invariant.Caller
	waiters   []*waitingRequest
	crediting *local.Waiter
	takings   []*taking

	granted      int64    // by the replies that it accepted
	spent        int64    // admitted from Redis' tokens, less refunds
	returnedLate int64    // of spent, admitted by an earlier bucket of the process
	refunding    []refund // canceled, and returned to Redis with the next call
	debt         int64    // admitted by the fail mode, or at a higher cost than was known
	debtReturned int64    // the part of debt that was refunded before it was reported
	evicted      bool     // by the cache, and not asked for since
	forgiven     bool     // a call failed after that: a debt is worth one try then
	shared       *ideal.Policer
}

// waitingRequest is a request that waits.
type waitingRequest struct {
	waiter *local.Waiter
	n      int64
	gen    int64
	since  int64 // the last seq when it joined: later calls may be for it
}

// taking is what a request took.
type taking struct {
	bucket *bucket
	n      int64
	from   local.Source
	gen    int64
	event  int          // of the admissions; -1: none
	stamp  *local.Stamp // of what they were counted by
	id     string       // the process' lease id then
}

// maxTakings is the number of requests that can still be canceled.
const maxTakings = 4

// apply carries out what a step of the bucket asked for.
func (b *bucket) apply(e local.Effect) {
	p := b.process
	if e.Send {
		if b.queued {
			p.world.Failf("%s: a bucket is to be queued twice", p.id)
		}
		b.queued = true
	}
	if e.Check > 0 && (b.checkAt == 0 || e.Check < b.checkAt) {
		b.checkAt = e.Check
	}
	if e.Done {
		p.cache.Forget(p.now(), b)
	}
}

// admit records that tokens were admitted, at their event or, if that is -1, now.
func (b *bucket) admit(t taking) {
	w := b.process.world
	if t.event == -1 {
		t.event = w.newEvent()
	}
	w.admit(t.event, t.n)
	b.took(t)
}

// took records tokens whose admission is recorded elsewhere: see direct.
func (b *bucket) took(t taking) {
	t.bucket = b
	b.spent += t.n
	b.remember(&t)
}

func (b *bucket) remember(t *taking) {
	t.id = b.process.id
	b.takings = append(b.takings, t)
	if len(b.takings) > maxTakings {
		b.takings = b.takings[1:]
	}
}

// fallback decides by the fail mode.
func (b *bucket) fallback(n int64) {
	p := b.process
	w := p.world
	gen, stamp := b.Generation(), b.Hot().LastStamp()
	switch v := b.Bucket.ByFailMode(p.now(), n, w.scope.fleetSize()); v.Reason {
	case local.Granted:
		b.admit(taking{n: n, from: local.FromRedis, gen: gen, event: -1, stamp: stamp})
	case local.Fallback:
		b.checkShare(n)
		b.debt += n
		b.remember(&taking{bucket: b, n: n, from: local.FromFallback, event: -1})
	case local.Open:
		b.debt += n
		b.remember(&taking{bucket: b, n: n, from: local.FromFallback, event: -1})
	case local.FallbackSpent, local.Unavailable:
	case local.Outdated: // evicted and forgotten meanwhile: another bucket has its place
		p.current().fallback(n)
	default:
		w.Failf("%s: alone with a request for %d: outcome %d", p.id, n, v.Reason)
	}
}

// checkShare checks that what a bucket admits by the fail mode fits into the process' fallback.
func (b *bucket) checkShare(n int64) {
	p, fleet := b.process, b.process.world.scope.fleetSize()
	if b.shared == nil {
		burst := invariant.ShareBurst(p.policy.Cap, fleet)
		b.shared = ideal.NewPolicer(p.policy.Tokens, p.policy.Per*time.Duration(fleet), burst)
	}
	b.shared.Admit(int64(p.now()), n)
	if worst := b.shared.Worst(); worst.Over > rounding {
		p.world.Failf("%s admitted alone: %v", p.id, worst)
	}
}

// giveBack refunds n tokens of a taking.
func (b *bucket) giveBack(t *taking, n int64) {
	w, now := b.process.world, b.process.now()
	t.n -= n
	if t.n == 0 {
		for i := range b.takings {
			if b.takings[i] == t {
				b.takings = append(b.takings[:i:i], b.takings[i+1:]...)
				break
			}
		}
	}
	before, _ := b.Bucket.Peek(now)
	burnt := b.Stats().Burnt
	e, ok := b.Bucket.Return(now, n, t.from, t.gen, t.stamp)
	if !ok {
		w.Failf("%s: the bucket in use is closed", b.process.id)
	}
	b.apply(e)
	if t.from == local.FromFallback {
		b.debtReturned += n
		return
	}
	b.spent -= n
	if after, _ := b.Bucket.Peek(now); b.Stats().Burnt > burnt {
		return
	} else if after > before {
		// Put back where nothing has left since: as if it had never been taken.
		w.admit(t.event, -n)
	} else {
		b.refunding = append(b.refunding, refund{t.event, n})
	}
}

// giveBackLate refunds n tokens of a taking whose bucket is gone, to the bucket that the key has
// now.
func (p *process) giveBackLate(t *taking, n int64) {
	if t.n -= n; t.n == 0 {
		i := slices.Index(p.late, t)
		p.late = slices.Delete(p.late, i, i+1)
	}
	if t.id != p.id { // a twin may refund them
		return
	}
	b, now := p.current(), p.now()
	burnt := b.Stats().Burnt
	e, ok := b.Bucket.Return(now, n, local.FromRedis, b.Generation(), t.stamp)
	if !ok {
		p.world.Failf("%s: the bucket in use is closed", p.id)
	}
	b.apply(e)
	b.spent -= n
	b.returnedLate += n
	if b.Stats().Burnt == burnt {
		b.refunding = append(b.refunding, refund{t.event, n})
	}
}

// send sends the call that is due.
func (b *bucket) send() {
	p := b.process
	w := p.world
	if p.twin {
		p.wake()
	}
	b.queued = false
	p.seq++
	c, effect := b.Begin(p.now(), local.Conditions{
		Seq: p.seq, Lease: p.id, Bucket: w.bucket, Phase: b.Policy().Call.Phase, Clock: p.clockKnown,
		Server: w.server() + p.clockError.Microseconds(), RoundTrip: p.roundTrip, Fleet: w.scope.fleetSize(),
	})
	if c.Seq == 0 {
		b.apply(effect)
		b.collect(nil)
		return
	}
	if b.call != nil {
		w.Failf("%s: two calls under way", p.id)
	}
	if c.Lease != "" {
		f := b.calls.Sends(&c.Call, &p.last)
		live, _ := b.Bucket.Peek(p.now())
		f.Or(invariant.Holds(&c.Call, live, w.covered(p), w.damaged))
		w.report(p, f)
	}
	b.call = w.request(b, c)
}

// failed gives up the call under way, if there is one.
func (b *bucket) failed() {
	if b.call != nil {
		b.call.givenUp, b.call = true, nil
		b.calls.GivesUp()
	}
	b.forgiven = b.forgiven || b.evicted
}

// giveUp ends the call under way without an answer.
func (b *bucket) giveUp() {
	seq := b.call.call.Seq
	b.failed()
	b.apply(b.Bucket.Fail(b.process.now(), seq, false))
	b.collect(nil)
}

// drop gives the call up that is due: the breaker is open.
func (b *bucket) drop() {
	b.queued = false
	b.failed() // there is no call, but it counts as one
	b.apply(b.Drop(b.process.now()))
	b.collect(nil)
}

// look has the timer go off.
func (b *bucket) look() {
	b.checkAt = 0
	b.apply(b.Check(b.process.now()))
}

// collect reads the outcomes of the waiters. reply is the one that brought them, if any.
func (b *bucket) collect(reply *reply) {
	line := b.waiters
	b.waiters = nil
	for _, wait := range line {
		select {
		case v := <-wait.waiter.C:
			b.outcome(wait, v, reply)
		default:
			b.waiters = append(b.waiters, wait)
		}
	}
	if b.crediting != nil && len(b.crediting.C) > 0 {
		<-b.crediting.C
		b.crediting = nil
	}
}

func (b *bucket) outcome(wait *waitingRequest, v local.Outcome, reply *reply) {
	switch v.Reason {
	case local.Granted:
		t := taking{n: wait.n, from: local.FromRedis, gen: wait.gen, event: -1, stamp: wait.waiter.Stamp}
		if reply != nil && reply.to.direct {
			t.event = reply.event
			b.took(t)
		} else {
			b.admit(t)
		}
	case local.Outdated: // the limit changed, and is below what it asked for
	case local.Unavailable:
		b.fallback(wait.n)
	case local.Limited:
	default:
		b.process.world.Failf("%s: waited for %d, outcome %d", b.process.id, wait.n, v.Reason)
	}
}

// describe states what a bucket is doing.
func (b *bucket) describe() string {
	return fmt.Sprintf("queued %t, check at %v, under way %t, %d in line, ledger %+v",
		b.queued, b.checkAt, b.call != nil, len(b.waiters), b.Stats())
}
