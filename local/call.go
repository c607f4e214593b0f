package local

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Conditions are what a call depends on besides its bucket, at the moment of sending.
type Conditions struct {
	Seq       int64         // for this call, from one counter per process that only rises
	Lease     string        // the id of the process
	Bucket    string        // the name of the bucket in the store
	Phase     int64         // µs: where the bucket's fixed windows begin
	Clock     bool          // the node's clock is known, so it understands a deadline
	Server    int64         // the node's clock, µs since 1970, if it is known
	RoundTrip time.Duration // 99th percentile of the node's round trips
	Timeout   time.Duration // after which a call to the node has failed, if that is more than Policy.Timeout
	Typical   time.Duration // median round trip of late, or 0 if it is not known
	Fleet     int64         // processes that share the limit, ≥ 1
	FleetHere int64         // of these, those that have their share in this bucket; 0 is all
}

// Call is what to send, and what has to be known of it when it ends. All that it states is absolute, so a copy does no
// harm.
type Call struct {
	lua.Call
	Policy   *Policy // the policy that it was made under
	Direct   bool    // tokens for those who wait, without a lease. Invariant: then Ack, Hold, Ret and Refund are 0
	Unleased bool    // it settles, and takes tokens for those who wait without leasing them. Invariant: never Direct

	Given int64 // part of Refund that comes from no request: a credit, or a reset

	ttl    time.Duration // of the lease
	wanted time.Duration // until then the node should execute it: Deadline, by this process' clock

	sent   time.Duration
	trip   time.Duration // Conditions.RoundTrip
	period time.Duration // of the lease
	first  bool          // the node has not answered yet, so its clock is unknown

	certain    int64 // part of Debt that no refill pays
	credits    int   // how many of the credits that wait it carries out
	returning  bool  // it gives everything back
	quiet      bool  // see Bucket.Quiet
	forWaiters bool  // everybody it is for waits and asks again

	settles    *Stamp // the entry of a log that To is for
	settledNow int64  // tokens that the entry gets back
}

// leases reports whether what the call is granted is a lease. If not, it is for those who wait, and none of it stays
// here.
func (c *Call) leases() bool { return !c.Direct && !c.Unleased }

// named reports whether the call says whose it is. Only such a call has Debt, Owed, Seen and Reset.
func (c *Call) named() bool { return c.Lease != "" }

// others is how many leases of other processes a reply knows of that hold or want tokens.
func (c *Call) others(r lua.Reply) int64 {
	if c.named() && (c.Hold > 0 || c.leases() && r.Grant+c.Want > 0) {
		return r.Active - 1
	}
	return r.Active
}

// micros converts a time as Redis tells it.
func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// refundDelay is how long refunded tokens wait for another call of their key to ride on. With a call's own time they
// are back within 50 ms.
const refundDelay = 25 * time.Millisecond

// Begin says what to send now that the queue's turn has come. The call that it returns must end with Accept, Late or
// Fail. A call of Seq 0 means that nothing is to be sent any more; only then there is an Effect.
func (b *Bucket) Begin(now time.Duration, c Conditions) (Call, Effect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queued = false
	if b.view.probe == probeLater { // this call does the same
		b.view.probe = probeNot
	}
	if b.life == closed || b.pending.calling() {
		return Call{}, Effect{}
	}
	b.lease.dropEnded(now)
	b.setFleet(now, c.Fleet)
	b.account(now)
	b.dropDebts(now, c)
	call, ok := b.compose(now, c)
	b.lease.fadeCost()
	if !ok {
		return Call{}, b.sendNothing(now, c.RoundTrip)
	}
	b.address(&call, now, c)
	if !call.Direct {
		b.stateLease(&call, now, c)
	}
	if call.named() {
		call.Seen = b.view.overflow
	}
	b.needPending().call = call
	b.lease.callSent()
	return call, Effect{}
}

// sendNothing ends a turn in which there was nothing to send.
func (b *Bucket) sendNothing(now, trip time.Duration) Effect {
	again := now + b.Policy().breath(trip)
	b.failCredits()          // without the node's clock there is no credit
	b.lease.renewFrom(again) // so that not every decision looks again
	b.forgive()
	b.pending.stopRepeating()
	b.conclude()
	effect := b.next(now)
	if effect.Send { // it cannot be sent yet, because the node's clock is unknown, and would spin
		b.queued = false
		return Effect{Check: again}
	}
	return effect
}

// address adds to a call what does not depend on what it is for: from whom, to which bucket, by when.
func (b *Bucket) address(call *Call, now time.Duration, c Conditions) {
	call.Seq, call.Bucket, call.Phase = c.Seq, c.Bucket, c.Phase
	call.Policy, call.sent, call.trip, call.first = b.Policy(), now, c.RoundTrip, !c.Clock
	call.quiet = b.pending.quiet(call.credits)
	if call.Fleet = c.FleetHere; call.Fleet == 0 {
		call.Fleet = c.Fleet
	}
	if call.TTL = call.ttl.Microseconds(); c.Clock {
		call.Deadline = c.Server + (call.wanted - now).Microseconds()
	}
	if call.Unleased {
		call.To = 1
	}
	call.Epoch = b.view.epoch
	if s := call.settles; s != nil {
		call.At, call.Epoch = s.at, s.epoch
		return
	}
	if call.Refund == 0 {
		return
	}
	if s := b.windows().takeRefund(); s != nil {
		call.At = s.at
		if b.freezes() { // else the epoch is that of Seen, and what comes back is credited whenever it was taken
			call.Epoch = s.epoch
		}
	}
}

// stateLease adds to a call that is not direct what a lease's record needs to know: which reply was accepted last, and
// what is owed.
func (b *Bucket) stateLease(call *Call, now time.Duration, c Conditions) {
	call.Lease = c.Lease
	l := b.needLease()
	if l.ack == unknownAck {
		l.ack = c.Seq - 1 // whatever an earlier state of this key was granted counts as spent
	}
	call.Ack = l.ack
	if call.Hold > 0 {
		// The record ends one ttl after this call is executed, even if its reply is lost and an earlier, longer ttl was
		// accepted. From now on the pot lives no longer than that.
		l.pot.endBy(now + usable(call.ttl))
	}
	if b.freezes() {
		call.Debt, call.certain, call.Since = b.windows().freeze(now, c.Server)
	} else {
		call.Debt, call.certain = l.fallback.debt.report()
		call.Since = c.Server
	}
	call.Owed = min(call.Debt, call.certain+b.share.missing(now))
	// The call may be executed until its deadline, and its record then lives for one ttl. A call that only gives back
	// puts nothing out. If it prolonged this, a return that always fails would be repeated for ever.
	if call.Hold > 0 || call.Want > 0 && call.leases() {
		l.mayBeOut(call.wanted + call.ttl)
	}
}

// usable is how long a process may use a lease that Redis keeps for ttl.
func usable(ttl time.Duration) time.Duration { return time.Duration(float64(ttl) * (1 - drift)) }
