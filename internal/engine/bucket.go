package engine

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Bucket is a local.Bucket with what the Group needs to send its calls.
type Bucket struct {
	local.Bucket
	node    atomic.Pointer[dispatch.Node] // the node that it was last sent to; nil before
	checkAt time.Duration                 // when the schedule checks it; 0 for never. Guarded by the schedule's mutex
}

// Limiter returns the Limiter that the bucket belongs to.
func (b *Bucket) Limiter() *Limiter { return Owner(b.Policy()).Limiter }

// Key returns the user's key, or its digest.
func (b *Bucket) Key() string { return b.ID().Key }

// name returns the bucket's name in the store. It is computed for each call, because a stored name would cost as much
// memory as the key.
func (b *Bucket) name() string {
	l := b.Limiter()
	return l.Group.Store.Name(l.Kind, l.Name, b.Key())
}

// apply carries out the effect of a step of the bucket.
func (b *Bucket) apply(now time.Duration, e local.Effect) {
	g := b.Limiter().Group
	if e.Send {
		to := b.route()
		to.Node.Push(to.Pending)
	}
	if e.Check > 0 {
		g.schedule.add(b, e.Check)
	}
	if e.Done {
		g.Cache.Forget(now, b)
	}
}

// route returns b's next call with its node, and notes that b is in use.
func (b *Bucket) route() dispatch.Routed {
	g, name := b.Limiter().Group, b.name()
	g.Cache.Touch(b)
	n := g.Dispatch.Node(g.Store.Node(name))
	b.setNode(n)
	return dispatch.Routed{Pending: dispatch.Pending{Job: b, Bucket: name}, Node: n}
}

// successor returns the bucket that b's key has since b was evicted, with the numbers by which b counted.
func (b *Bucket) successor(now time.Duration, key string) *Bucket {
	next := b.Limiter().Group.find(now, b.ID())
	next.Limiter().resolve(next, key)
	next.Inherit(b.Policy())
	return next
}

// knownNode returns the node that b was last sent to. It returns nil if that is unknown and all nodes are healthy. If a
// node is unhealthy, it determines b's node at once. Otherwise a request for a new bucket would wait for a sender, only
// to learn that nothing is sent to that node.
func (b *Bucket) knownNode() *dispatch.Node {
	if n := b.node.Load(); n != nil {
		return n
	}
	g := b.Limiter().Group
	if g.Dispatch.Unhealthy() == 0 {
		return nil
	}
	n := g.Dispatch.Node(g.Store.Node(b.name()))
	b.setNode(n)
	return n
}

// setNode stores the node that the bucket is sent to. It writes only a change, because every decision reads the field.
func (b *Bucket) setNode(n *dispatch.Node) {
	if b.node.Load() != n {
		b.node.Store(n)
	}
}

// Compose implements [dispatch.Job].
func (b *Bucket) Compose(n *dispatch.Node, now time.Duration, name string) (lua.Call, bool) {
	b.setNode(n) // its node may have been found after it was queued
	g := b.Limiter().Group
	c, effect := b.Begin(now, b.conditions(n, now, name, g.seq.Add(1)))
	if c.Seq == 0 {
		b.apply(now, effect)
		return lua.Call{}, false
	}
	if g.Simulated != nil {
		call := c.Call // a copy, so that only a simulation allocates it
		g.Simulated.Sends(now, &call, &b.Bucket)
	}
	return c.Call, true
}

// conditions are what a call to a node depends on besides the bucket.
func (b *Bucket) conditions(n *dispatch.Node, now time.Duration, name string, seq int64) local.Conditions {
	l := b.Limiter()
	server, known := n.ServerTime(now)
	return local.Conditions{
		Seq: seq, Lease: l.leaseID(), Bucket: name, Phase: l.phase(b.Key()),
		Clock: known, Server: server, RoundTrip: n.RoundTrip(),
		Timeout: n.Timeout(), Typical: n.TypicalTrip(),
		Fleet: n.Processes(l.place()),
	}
}

// Finish implements [dispatch.Job].
func (b *Bucket) Finish(n *dispatch.Node, now time.Duration, call *lua.Call, sent time.Duration, r remote.Result) {
	var e local.Effect
	l, seq := b.Limiter(), call.Seq
	switch code := r.Reply.Code; {
	case r.Err != nil:
		l.countFailure(call, r.Err)
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
		if call.Debt > 0 {
			nodeOf(n).Settled(call.Debt - b.UnderWay(now, seq).Charged)
		}
		if b.wasLost(now, n, call, r.Reply) {
			l.Group.Hooks.StateLost(b, n)
		}
		if accepted := l.Group.Hooks.Accepted; accepted != nil {
			accepted(b, n, call, r.Reply, now-sent)
		}
		var accepted bool
		if e, accepted = b.Accept(now, seq, r.Reply); accepted && r.Reply.Forgiven > 0 {
			l.forgive(r.Reply.Forgiven)
		}
	case code == lua.Late:
		b.reportError(n, call, errLate, "late")
		e = b.Late(now, seq)
	default:
		b.reportError(n, call, errStale, "stale")
		e = b.Fail(now, seq)
	}
	b.apply(now, e)
}

// reportError reports a call that failed to the hooks.
func (b *Bucket) reportError(n *dispatch.Node, call *lua.Call, err error, class string) {
	if failed := b.Limiter().Group.Hooks.Failed; failed != nil {
		failed(b, n, call, err, class)
	}
}

// wasLost reports whether a reply, not yet accepted, shows that Redis has lost the bucket or the last writes to it. For
// a lease, the missing record shows it. A direct take leaves no record. For it, another epoch shows a loss, unless the
// bucket may have been full by now and expired. It is a false alarm if another process filled the bucket, by a Reset or
// by returned tokens, and the bucket then expired.
//
// An outage outlives the records of leases, and where others use the key no process knows its level. So after an outage
// another epoch of a key that was half used shows a loss too, until a bucket is found to have its epoch still.
func (b *Bucket) wasLost(now time.Duration, n *dispatch.Node, call *lua.Call, r lua.Reply) bool {
	if r.Flags&lua.Unrecorded != 0 && b.UnderWay(now, call.Seq).Leased {
		return true
	}
	node, other := nodeOf(n), r.Flags&lua.OtherEpoch != 0
	if !other {
		if now < node.Doubted() && call.Epoch != 0 && call.Epoch == r.Epoch {
			node.KeptData()
		}
		return false
	}
	surely, likely := b.Lives(now, call.Epoch)
	return surely || likely && now < node.Doubted()
}

// Errors of calls that did nothing.
var (
	errLate  = errors.New("tiered: the call reached Redis after its deadline, and did nothing")
	errStale = errors.New("tiered: a newer call had overtaken this one, and it did nothing")
)

// Abandon implements [dispatch.Job].
func (b *Bucket) Abandon(n *dispatch.Node, now time.Duration) {
	b.setNode(n)
	b.apply(now, b.Drop(now))
}
