package engine

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// name returns the bucket's name in the store. It is computed for each call, because a stored name
// would cost as much memory as the key.
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

// setNode stores the node that the bucket is sent to. It writes only a change, because every
// decision reads the field.
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
	if !known { // this machine's clock guesses the window of the calendar: a call for a wrong one does nothing, and tells Redis' time
		server = l.Group.Base.Add(now).UnixMicro()
	}
	return local.Conditions{
		Now: now, Seq: seq, Lease: l.leaseID(), Bucket: name, Phase: l.phase(b.Key()),
		Clock: known, Server: server, RoundTrip: n.RoundTrip(),
		Timeout: n.Timeout(), Slow: n.SlowTrip(),
		Fleet: n.Processes(l.place()), Well: n.IsWell(),
	}
}

// leaseID returns the id under which the Limiter leases. It is that of the process, unless the
// policy came back as one that cannot take up its last Limiter: then Redis must tell the calls of
// both apart.
func (l *Limiter) leaseID() string {
	id := *l.Group.Lease.Load()
	if !l.Beside {
		return id
	}
	n, _ := strconv.ParseUint(id, 16, 64)
	return fmt.Sprintf("%016x", n^local.Hash(uint64(l.Number), local.ID{Key: l.Name}))
}

// phase returns where the windows of a key begin, in µs.
func (l *Limiter) phase(key string) int64 {
	if !l.Kind.Algorithm.Has(lua.Phased) || l.Kind.Calendar || l.Kind.Unit != "" {
		return 0
	}
	return local.Phase(key, l.Kind.Window)
}

// Finish implements [dispatch.Job].
func (b *Bucket) Finish(n *dispatch.Node, now time.Duration, call *lua.Call, sent time.Duration, r remote.Result) {
	var e local.Effect
	l, seq := b.Limiter(), call.Seq
	if r.Err == nil && !l.Group.Heard.Load() { // written once, because all decisions of an outage read it
		l.Group.Heard.Store(true)
	}
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
			e = b.Fail(now, seq, true)
		}
	case code == lua.Granted || code == lua.Denied || code == lua.Replay:
		known := b.UnderWay(now, seq, call.Epoch)
		if call.Debt > 0 {
			nodeOf(n).Settled(call.Debt - known.Charged)
		}
		if wasLost(now, n, call, r.Reply, known) {
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
		e = b.Late(now, seq, r.Reply.Stamp)
	default:
		b.reportError(n, call, errStale, "stale")
		e = b.Fail(now, seq, false)
	}
	b.apply(now, e)
}

// reportError reports a call that failed to the hooks.
func (b *Bucket) reportError(n *dispatch.Node, call *lua.Call, err error, class string) {
	if failed := b.Limiter().Group.Hooks.Failed; failed != nil {
		failed(b, n, call, err, class)
	}
}

// wasLost reports whether a reply, not yet accepted, shows that Redis has lost the bucket or the
// last writes to it. For a lease, the missing record shows it. A direct take leaves no record. For
// it, another epoch shows a loss, unless the bucket may have been full by now and expired. It is a
// false alarm if another process filled the bucket, by a Reset or by returned tokens, or counts by
// another calendar, and the bucket then expired.
//
// An outage outlives the records of leases, and where others use the key no process knows its
// level. So after an outage another epoch of a key that was half used shows a loss too, until a
// bucket is found to have its epoch still.
func wasLost(now time.Duration, n *dispatch.Node, call *lua.Call, r lua.Reply, known local.UnderWay) bool {
	if r.Flags&lua.Unrecorded != 0 && known.Leased {
		return true
	}
	node, other := nodeOf(n), r.Flags&lua.OtherEpoch != 0
	if !other {
		if now < node.Doubted() && call.Epoch != 0 && call.Epoch == r.Epoch {
			node.KeptData()
		}
		return false
	}
	return known.Lives || known.LikelyLives && now < node.Doubted()
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

// byRule returns the outcome of a rule, or that of a limit whose burst is too small.
func (b *Bucket) byRule(now time.Duration) local.Outcome {
	switch p := b.Policy(); p.Rule {
	case local.Unlimited:
		return local.Decided(p, local.Granted, local.Local, 0, 0)
	case local.Blocked:
		return local.Decided(p, local.ExceedsBurst, local.Local, 0, 0)
	}
	return b.refuseForGood(now, local.ExceedsBurst)
}

// refuseForGood returns a refusal that more tokens could not have prevented. What is left is what
// this process knows of b.
func (b *Bucket) refuseForGood(now time.Duration, r local.Reason) local.Outcome {
	return local.Decided(b.Policy(), r, local.Nowhere, b.seenLeft(now), 0)
}

// seenLeft returns the tokens that this process holds, and those last seen in Redis.
func (b *Bucket) seenLeft(now time.Duration) int64 {
	held, level := b.Peek(now)
	return min(held+max(level, 0), b.Policy().Most())
}
