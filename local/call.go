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
	Slow      time.Duration // round trip of a slow answer, or 0 if none has come
	Fleet     int64         // processes that share the limit, ≥ 1
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
	sent   time.Duration
	trip   time.Duration // Conditions.RoundTrip
	period time.Duration // of the lease
	first  bool          // the node has not answered yet, so its clock is unknown

	certain    int64 // part of Debt that no refill pays
	credits    int   // how many of the credits that wait it carries out
	returning  bool  // it gives everything back
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
	b.lease.forget(b.Policy(), b.denied.windows().outdated(b.Policy(), now, c))
	m := newComposer(b, now, c, false)
	ok := m.next()
	if b.lease != nil {
		b.lease.maxCost.fade()
	}
	if !ok {
		return Call{}, b.sendNothing(now, c.RoundTrip)
	}
	m.state()
	b.pending = b.pending.orNew()
	b.pending.call = m.call
	b.lease.callSent()
	return m.call, Effect{}
}

// sendNothing ends a turn in which there was nothing to send.
func (b *Bucket) sendNothing(now, trip time.Duration) Effect {
	again := now + b.Policy().retryPause(trip)
	b.pending.failCredits()  // without the node's clock there is no credit
	b.lease.renewFrom(again) // so that not every decision looks again
	b.forgive()
	b.pending.stopRepeating()
	b.deliver()
	effect := b.next(now)
	if effect.Send { // it cannot be sent yet, because the node's clock is unknown, and would spin
		b.queued = false
		return Effect{Check: again}
	}
	return effect
}

// By is a dry run by the limits of another policy.
func (c Call) By(p *Policy) Call {
	l := &p.Call
	c.Cap, c.Tokens, c.Period, c.Span, c.Also, c.Policy = l.Cap, l.Tokens, l.Period, l.Span, l.Also, p
	return c
}

// Only is a dry run by one of the limits of a key, from 0.
func (c Call) Only(i int) Call {
	l, p := c.Limits()[i], *c.Policy
	p.Call.Cap, p.Call.Tokens, p.Call.Period, p.Call.Span, p.Call.Also = l.Cap, l.Tokens, l.Period, l.Span, nil
	p.Cap = l.Cap
	return c.By(&p)
}

// Report has Redis told what is spent of the lease and what is owed, and reports false if there is neither: what comes has
// no room before, and what is owed does not begin to be paid.
func (b *Bucket) Report(now time.Duration) (e Effect, news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life != inUse || !b.lease.out(now) && !b.lease.owes() {
		return Effect{}, false
	}
	if b.upkeep == nothing {
		b.upkeep = reporting
	}
	return b.sendAfterBackOff(now), true
}

// Terms is a call that takes nothing, and tells Redis the bucket's limit: a token bucket refills by the one that it was
// told last.
func (b *Bucket) Terms(c Conditions) lua.Call {
	call := b.Policy().Call
	call.Bucket, call.Phase, call.Fleet = c.Bucket, c.Phase, max(c.Fleet, 1)
	return call
}

// dryLease is the lease id of a dry run of a direct take, which has none: no process has it.
const dryLease = "?"

// DryRun is the call that Redis would be asked for n tokens by now, as a dry run: Redis says what it would answer, and
// nothing changes. It reports false if Redis would not be asked, because calls have failed of late. c.Seq is that of the
// last call of the process.
func (b *Bucket) DryRun(now time.Duration, n int64, c Conditions) (call Call, asks bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lease.backsOff(now) {
		return Call{}, false
	}
	b.lease.dropEnded(now) // as before any call
	b.account(now)
	b.lease.forget(b.Policy(), b.denied.windows().outdated(b.Policy(), now, c))
	m := newComposer(b, now, c, true)
	return m.dryRun(n), true
}

// Foreseen is the verdict on n tokens by Redis' answer to a dry run. Left is what remains before they are taken.
func (b *Bucket) Foreseen(now time.Duration, n int64, c Call, r lua.Reply) Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, held := c.Policy, int64(0)
	if !c.Direct {
		held = b.lease.live(now)
	}
	left := held + r.Level - max(b.lease.orEmpty().outage.debt.certain-c.certain, 0) // what a direct take does not report
	v := Verdict{Outcome: Admitted, Left: min(max(left, 0), p.Cap)}
	if r.Grant > 0 {
		return v
	}
	d := b.denied.copy()
	if c.leases() {
		n -= held
	}
	byOther := r.Flags&lua.OtherTerms != 0
	d.refused(p, c.Min, r.Level, c.sent, now, micros(r.Retry), byOther)
	if c.leases() && p.holdsOff(r) && d.leaves(c, r) {
		d.holdOff = max(d.holdOff, p.holdOffEnd(c))
	}
	v.Outcome = Refused
	if held == 0 {
		v.Left = min(left, v.Left)
	}
	v.Retry, _ = d.refuses(now, n)
	return v
}

// size works out the sizing of the bucket now.
func (b *Bucket) size(now, trip time.Duration) sizing {
	p, l, longest := b.Policy(), b.lease.orEmpty(), time.Duration(never)
	d := b.denied.Load()
	if d != nil && d.larger != nil {
		p, longest = d.larger, p.MaxTTL()/4
	}
	period := min(p.period(trip), longest)
	if d.scarce() {
		period = p.scarcePeriod(period, &b.demand, float64(max(b.view.fleet, 1)))
	}
	most := p.mayHold(b.view.fleet, max(b.levelAt(now), 0)+l.live(now), period)
	return size(p, &b.demand, period, trip, l.maxCost.Load(), l.lastGrant, most)
}

// UnderWay is what the owner may ask of the call under way.
type UnderWay struct {
	Charged int64 // tokens of charges that it reports
	Leased  bool  // a lease lives. If a reply says that its record is not there, Redis has lost writes
}

// UnderWay describes the call seq. It is zero if that is not under way.
func (b *Bucket) UnderWay(now time.Duration, seq int64) UnderWay {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.pending.carries(seq) {
		return UnderWay{}
	}
	c := &b.pending.call
	return UnderWay{c.certain, b.lease.lives(now)}
}
