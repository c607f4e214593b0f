package tiered

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// bucket is a local.Bucket with what the Group needs to send its calls.
type bucket struct {
	local.Bucket
	node    atomic.Pointer[dispatch.Node] // that it was last sent to
	checkAt time.Duration                 // in the agenda for then; 0 for not. Guarded by the agenda's mutex
}

// limiter is whose bucket it is.
func (b *bucket) limiter() *Limiter { return b.Policy().Owner.(*plan).limiter }

// key is the user's, or its digest.
func (b *bucket) key() string { return b.ID().Key }

// name is what the store calls the bucket. Computed per call, not kept: a name costs as much memory as a key.
func (b *bucket) name() string {
	l := b.limiter()
	return l.group.store.Name(l.kind, l.name, b.key())
}

// apply carries out what a step of the bucket asks for.
func (b *bucket) apply(now time.Duration, e local.Effect) {
	g := b.limiter().group
	if e.Send {
		to := b.route()
		to.Node.Push(to.Pending)
	}
	if e.Check > 0 {
		g.agenda.plan(b, e.Check)
	}
	if e.Done {
		g.cache.Forget(now, b)
	}
}

// route addresses b's next call, and notes that b is in use.
func (b *bucket) route() dispatch.Routed {
	g, name := b.limiter().group, b.name()
	g.cache.Touch(b)
	n := g.dispatch.Node(g.store.Node(name))
	b.at(n)
	return dispatch.Routed{Pending: dispatch.Pending{Job: b, Bucket: name}, Node: n}
}

// whereabouts is the node that b was last sent to, nil for none. While a node is unhealthy a new bucket's is found out: it
// would else wait for a sender, to be told that its node is not asked.
func (b *bucket) whereabouts() *dispatch.Node {
	if n := b.node.Load(); n != nil {
		return n
	}
	g := b.limiter().group
	if g.dispatch.Unhealthy() == 0 {
		return nil
	}
	n := g.dispatch.Node(g.store.Node(b.name()))
	b.at(n)
	return n
}

// at notes the node that the bucket is sent to. It is read at every decision, so it is written only when it changes.
func (b *bucket) at(n *dispatch.Node) {
	if b.node.Load() != n {
		b.node.Store(n)
	}
}

// Compose implements [dispatch.Job].
func (b *bucket) Compose(n *dispatch.Node, now time.Duration, name string) (lua.Call, bool) {
	b.at(n) // its node may have been found since it was put into a queue
	l := b.limiter()
	g := l.group
	seq := g.seq.Add(1)
	server, known := n.ServerTime(now)
	c, effect := b.Begin(now, local.Conditions{
		Seq: seq, Lease: *g.lease.Load(), Bucket: name, Phase: l.phase(b.key()),
		Clock: known, Server: server, RoundTrip: n.RoundTrip(), Fleet: n.Processes(), FleetHere: l.fleetOf(n.Processes()),
	})
	if c.Seq == 0 {
		b.apply(now, effect)
		return lua.Call{}, false
	}
	if g.simulated != nil {
		g.simulated.Sends(now, &c.Call, &b.Bucket)
	}
	return c.Call, true
}

// Finish implements [dispatch.Job].
func (b *bucket) Finish(n *dispatch.Node, now time.Duration, call *lua.Call, sent time.Duration, r remote.Result) {
	var e local.Effect
	l, seq := b.limiter(), call.Seq
	switch code := r.Reply.Code; {
	case r.Err != nil:
		l.failed(call, r.Err)
		class := failover.Classify(r.Err)
		b.reportError(n, call, r.Err, class.String())
		if class == failover.KeyFault {
			var forgiven int64
			e, forgiven = b.Rejected(now, seq)
			l.forgive(forgiven)
		} else {
			e = b.Fail(now, seq)
			e.Check = b.Retry(now).Check
		}
	case code == lua.Granted || code == lua.Denied || code == lua.Replay:
		healthOf(n).settled(call.Debt)
		if b.wasLost(now, call, r.Reply) {
			b.lost(n)
		}
		if t := l.group.trace; t.hooks.Lease != nil && !b.Quiet(seq) {
			t.lease(LeaseEvent{
				Node: string(n.ID()), Policy: l.name, Key: b.key(),
				Direct: call.Lease == "", Asked: call.Want, Granted: r.Reply.Grant, Held: call.Hold,
				Returned: call.Ret + refunded(call, r.Reply), Settled: call.Debt, RoundTrip: now - sent,
				Which: named(call, r.Reply),
			})
		}
		e, _ = b.Accept(now, seq, r.Reply)
	case code == lua.Late:
		b.reportError(n, call, errLate, "late")
		e = b.Late(now, seq)
	default:
		b.reportError(n, call, errStale, "stale")
		e = b.Fail(now, seq)
	}
	b.apply(now, e)
}

// refunded is what came back of the tokens that a call refunded.
func refunded(c *lua.Call, r lua.Reply) int64 {
	if r.Flags&lua.Unapplied != 0 {
		return 0
	}
	return c.Refund
}

// reportError reports a call that failed to the hooks.
func (b *bucket) reportError(n *dispatch.Node, call *lua.Call, err error, class string) {
	l := b.limiter()
	if t := l.group.trace; t.hooks.Error != nil && !b.Quiet(call.Seq) {
		t.failure(ErrorEvent{Node: string(n.ID()), Policy: l.name, Key: b.key(), Err: err, Class: class, Asked: call.Want})
	}
}

// wasLost reports whether a reply, not yet accepted, shows that Redis had lost the bucket, or what it last wrote of it. Of a
// lease the record tells, to the last write. A direct take leaves none: there, a bucket of another epoch was lost that could
// not be full again by what is known here. (Where another process filled it meanwhile, by a Reset or by what it gave back of what
// was admitted, and it then expired, that is a false alarm.)
func (b *bucket) wasLost(now time.Duration, call *lua.Call, r lua.Reply) bool {
	if r.Flags&lua.Unrecorded != 0 && b.LostRecord(now, call.Seq) {
		return true
	}
	return r.Flags&lua.OtherEpoch != 0 && b.Outlives(now, call.Epoch)
}

// lost tells that Redis had lost the bucket. Those of a flushed Redis come in a crowd: they make one line.
func (b *bucket) lost(n *dispatch.Node) {
	l := b.limiter()
	healthOf(n).stateLosses.Add(1)
	l.group.trace.fault(FaultEvent{Fault: "state loss", Node: string(n.ID()), Policy: l.name, Key: b.key()})
	l.group.journal.tally("state loss "+string(n.ID()), 1, slog.LevelWarn,
		"redis lost buckets, or what it had written last: each may admit a burst more", "node", string(n.ID()))
}

// What a call came to that did nothing.
var (
	errLate  = errors.New("tiered: the call reached Redis after its deadline, and did nothing")
	errStale = errors.New("tiered: a newer call had overtaken this one, and it did nothing")
)

// Abandon implements [dispatch.Job].
func (b *bucket) Abandon(n *dispatch.Node, now time.Duration) {
	b.at(n)
	b.apply(now, b.Drop(now))
}
