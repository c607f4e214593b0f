package local

import (
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/fifo"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Bucket is the process' side of one bucket: its lease, and what it knows of the bucket in Redis.
// Make it with [Bucket.Init]. All methods may be called concurrently.
//
// It is made of parts that each keep their own invariants, and is small, because a process may keep
// a million. What only some buckets need is allocated when it is needed: a lease state with the
// first lease or debt, a pending state while somebody waits or a call is under way, a denial with a
// refusal. Each of these may be nil, and its methods answer for that.
//
// It fills a size class of the allocator together with what internal/engine adds (240 of 256
// bytes).
type Bucket struct {
	hot Hot

	mu      sync.Mutex // guards what is not atomic, and what is in the lease state
	pending *pending   // nil while nobody waits and no call is under way

	demand   demand
	fallback fallback
	granted  int64 // tokens by Redis, to the pot or directly
}

// Init makes b the new bucket of a key of a policy. It keeps the key.
func (b *Bucket) Init(p *Policy, key string) {
	b.hot.policy.Store(p)
	b.hot.key = key
	if !p.Call.Algorithm.Has(lua.OneLevel) {
		b.hot.denied.Store(&denial{windows: new(windowState)})
	}
	b.hot.view.level.Store(p.Cap) // an absent bucket is full
}

// Hot is the part of the bucket that needs no lock.
func (b *Bucket) Hot() *Hot { return &b.hot }

// Policy is the policy of the bucket at present; see [Bucket.SetPolicy].
func (b *Bucket) Policy() *Policy { return b.hot.Policy() }

// ID is the name of the bucket.
func (b *Bucket) ID() ID { return b.hot.ID() }

// needLease returns the lease state, a new one if there is none.
func (b *Bucket) needLease() *leaseState {
	if b.hot.lease != nil {
		return b.hot.lease
	}
	b.hot.lease = &leaseState{ack: unknownAck}
	for w := range b.pending.waiting() {
		b.hot.lease.maxCost.note(w.cost)
	}
	b.hot.openPot(b.pending.count())
	return b.hot.lease
}

// spent reports the tokens admitted so far from what Redis granted. Takers may add to it meanwhile.
func (b *Bucket) spent() int64 { return b.granted - b.hot.lease.unspent() }

// size works out the sizing of the bucket now.
func (b *Bucket) size(now, trip time.Duration) sizing {
	p, l, longest := b.Policy(), b.hot.lease.orEmpty(), time.Duration(never)
	d := b.hot.denied.Load()
	if d != nil && d.larger != nil {
		p, longest = d.larger, p.MaxTTL()/4
	}
	period := min(p.period(trip), longest)
	if d.scarce() {
		period = p.scarcePeriod(period, &b.demand, float64(max(b.hot.view.fleet, 1)))
	}
	most := p.mayHold(b.hot.view.fleet, max(b.hot.levelAt(now), 0)+l.live(now), period)
	return size(p, &b.demand, period, trip, l.maxCost.Load(), l.lastGrant, most)
}

// send puts the bucket into the queue, unless it is there or a call is under way.
func (b *Bucket) send() Effect {
	if b.hot.queued || b.pending.calling() {
		return Effect{}
	}
	b.hot.queued = true
	b.hot.lease.renewFrom(never)
	return Effect{Send: true}
}

// backsOff reports whether failures forbid a request to ask. A few forbid it only until the node
// answers: it may have stood still for a moment, and the fail mode would go on in its place. They
// may be as many as open a breaker, because it does not count a call that ended with its caller's
// Budget.
func (b *Bucket) backsOff(now time.Duration, well bool) bool {
	return b.hot.lease.backsOff(now) && (!well || b.hot.view.failures > retries)
}

// sendAfterBackOff sends as soon as the back-off allows.
func (b *Bucket) sendAfterBackOff(now time.Duration) Effect {
	if !b.hot.lease.backsOff(now) {
		return b.send()
	}
	return Effect{Check: b.hot.lease.backOffEnd()}
}

// deliver ends a step that may have served somebody. It releases the pending state if nothing is
// left in it, and lets takers at the pot if nobody waits. Only then it delivers the outcomes: a
// caller who asks again at once finds the pot open, and what came with its outcome does not refuse
// it.
func (b *Bucket) deliver() {
	p := b.pending
	if p == nil {
		b.hot.openPot(b.pending.count())
		return
	}
	decided := p.decided // p may be another bucket's soon
	p.decided = fifo.Queue[*Waiter]{}
	if p.idle() {
		b.pending = nil
		*p = pending{}
		pendings.Put(p)
	}
	b.hot.openPot(b.pending.count())
	for place := decided.First(); place != nil; place = decided.First() {
		decided.Leave(place) // once it has its outcome it belongs to its caller
		place.Member.C <- place.Member.outcome
	}
}

// next says when the bucket wants to be looked at again.
func (b *Bucket) next(now time.Duration) Effect {
	l := b.hot.lease
	switch {
	case b.hot.queued || b.pending.calling() || b.hot.life == closed:
		return Effect{} // the end of the call will tell
	case b.hot.view.probe == probeLater:
		return Effect{Check: l.backOffEnd()}
	case b.owesNothing(now):
		return Effect{Done: b.hot.retired()}
	case b.pending.count() > 0:
		return Effect{Check: now + minIdle} // their time is over and they are about to leave
	case b.pending != nil: // a Reset waits
		return b.send()
	case b.hot.retired() || b.hot.upkeep != nothing:
		return b.sendAfterBackOff(now)
	case l.ledger.toRefund > 0 || l.outage.debt.certain > 0:
		return Effect{Check: max(now+refundDelay, l.backOff)}
	case l.ledger.toReturn > 0:
		return Effect{Check: max(now+minIdle, l.backOff)}
	}
	period := b.hot.leasing.lasting(b.size(now, 0).period)
	check := l.usedAt + idle(period)
	if once := l.usedAt + period; b.Policy().slow() && now < once { // so it is known to a period when it was last used
		check = once
	}
	if l.pot.tokens.Load() > 0 {
		check = min(check, b.hot.lease.extendAt(b.Policy(), b.hot.denied.windows(), b.hot.leasing.trip()))
	}
	return Effect{Check: max(check, now+minIdle)}
}

// owesNothing reports whether nothing is owed in either direction. A debt is allowed: it waits for
// the next call, because what is refilled meanwhile pays it. But a retired bucket has no next call,
// so it must have no debt.
func (b *Bucket) owesNothing(now time.Duration) bool {
	l := b.hot.lease
	switch {
	case b.hot.queued || b.pending != nil:
		return false
	case l == nil:
		return true
	case l.ledger.toRefund > 0 || l.outage.debt.certain > 0 || l.out(now):
		return false
	}
	return b.hot.life == inUse || b.hot.owing() == 0
}
