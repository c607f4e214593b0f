package local

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Conditions are what a call depends on besides its bucket, at the moment of sending.
type Conditions struct {
	Seq    int64         // for this call: from one counter per process, ever rising
	Lease  string        // the id of the process
	Bucket string        // the name of the bucket, and where its fixed windows begin
	Phase  int64         // µs
	Clock  bool          // the node's clock is known, so that it understands a deadline
	Server int64         // what it shows, µs since 1970, if it is known
	Trip   time.Duration // 99th percentile of the node's round trips
	Fleet  int64         // processes that share the limit, ≥ 1
	Here   int64         // of these, those that have their share in this bucket; 0 is all
}

// Call is what to send, and what is to be known of it when it ends. All that it states is absolute, so a copy of it does no harm.
type Call struct {
	lua.Call
	Policy *Policy // whose numbers it is made by
	Direct bool    // tokens for those in line, without a lease: then Ack, Hold, Ret and Refund are 0
	AtOnce bool    // it settles, and takes tokens for those in line without leasing them: never Direct

	ttl    time.Duration // TTL
	wanted time.Duration // from here on the node should do nothing: Deadline, by this process' clock

	sent      time.Duration
	trip      time.Duration
	period    time.Duration
	certain   int64 // part of Debt that no refill pays
	resets    int   // how many of the bucket's resets it carries out
	returning bool  // gives everything back
	quiet     bool  // see Bucket.Quiet
	first     bool  // the node's clock is unknown: it has not answered yet

	forWaiters bool // for those alone who wait and ask again

	settles    *Stamp // the entry of a log that To is for
	settledNow int64  // tokens that it gets back
}

// lends reports whether what the call is granted is a lease. Else it is for those in line, and nothing of it stays here.
func (c *Call) lends() bool { return !c.Direct && !c.AtOnce }

// named reports whether the call says whose it is. Only such a call has Debt, Owed, Seen and Reset.
func (c *Call) named() bool { return c.Lease != "" }

// others is how many leases of other processes a reply knows of that hold or want tokens.
func (c *Call) others(r lua.Reply) int64 {
	if c.named() && c.Hold+r.Grant+c.Want > 0 {
		return r.Active - 1
	}
	return r.Active
}

// micros is a time that Redis told of.
func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// refundDelay is how long refunded tokens wait for another call of their key to ride on; with a call's own time they are
// back within 50 ms.
const refundDelay = 25 * time.Millisecond

// Begin says what to send now that the queue's turn has come. The call it returns must end with Accept, Late or Fail. A
// call of Seq 0 means that nothing is to be sent any more; only then is there an Effect.
func (b *Bucket) Begin(now time.Duration, c Conditions) (Call, Effect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queued = false
	if b.probe == probeLater { // this call is as good
		b.probe = probeNot
	}
	if b.closed || b.calling() {
		return Call{}, Effect{}
	}
	if b.leaseState != nil {
		b.dropEnded(now)
	}
	b.setFleet(now, c.Fleet)
	b.account(now)
	call, ok := b.compose(now, c)
	if b.leaseState != nil {
		cost := b.maxCost.Load()
		b.maxCost.Store(cost - (cost+7)/8) // old costs fade
	}
	if !ok {
		b.endResets(Verdict{Outcome: Failed})      // without the node's clock there is no refund
		b.askFrom(now + b.Policy().breath(c.Trip)) // do not look again at each decision
		b.forgive()
		if b.pending != nil {
			b.again = false
			b.conclude()
		}
		effect := b.next(now)
		if effect.Send { // what cannot be sent now (the node's clock is unknown) would spin
			b.queued = false
			effect = Effect{Check: now + b.Policy().breath(c.Trip)}
		}
		return Call{}, effect
	}
	call.Seq, call.Bucket, call.Phase, call.sent, call.trip, call.first = c.Seq, c.Bucket, c.Phase, now, c.Trip, !c.Clock
	if call.Fleet = c.Here; call.Fleet == 0 {
		call.Fleet = c.Fleet
	}
	if call.TTL = call.ttl.Microseconds(); c.Clock {
		call.Deadline = c.Server + (call.wanted - now).Microseconds()
	}
	if call.AtOnce {
		call.To = 1
	}
	call.Policy, call.quiet = b.Policy(), b.quiet(call.resets)
	call.Epoch = b.epoch
	if s := call.settles; s != nil {
		call.At, call.Epoch = s.At, s.Epoch
	} else if w := b.windows(); w != nil && w.refund != nil && call.Refund > 0 {
		call.At = w.refund.At
		if b.freezes() { // else the epoch is that of Seen, and what comes back is credited whenever it was taken
			call.Epoch = w.refund.Epoch
		}
		w.refund = nil
	}
	if !call.Direct {
		call.Lease = c.Lease
		b.needLease()
		if b.ack == unknown {
			b.ack = c.Seq - 1 // whatever an earlier state of this key was granted counts as spent
		}
		call.Ack = b.ack
		// The record will end one ttl after this call is executed, even if its reply is lost and an earlier, longer ttl
		// was accepted: from here on the pot lives no longer than that.
		if end := int64(now + life(call.ttl)); call.Hold > 0 && b.deadline.Load() > end {
			b.deadline.Store(end)
		}
		if b.freezes() {
			call.Debt, call.certain, call.Since = b.freeze(now, c.Server)
		} else {
			call.Debt = min(b.debt.admitted, maxDebt)
			call.certain = min(b.debt.certain, call.Debt)
			call.Since = c.Server
		}
		call.Owed = min(call.Debt, call.certain+b.share.missing(now))
		// The call may be executed until its deadline, and its record then lives for one ttl. One that only gives back puts
		// nothing out; if it prolonged this, a return that always fails would be repeated for ever.
		if call.Hold > 0 || call.Want > 0 && call.lends() {
			b.outUntil = max(b.outUntil, now+b.Policy().Timeout+call.ttl)
		}
	}
	if call.named() {
		call.Seen = b.seen
	}
	b.needPending().call = call
	if b.leaseState != nil {
		b.generation.Add(1)
		b.renewAt.Store(never)
	}
	return call, Effect{}
}

// endOld takes what is dead out of the pot, and lets go of what a record no longer keeps.
func (b *Bucket) dropEnded(now time.Duration) {
	if b.pot.Load() > 0 && int64(now) >= b.deadline.Load() {
		b.drain() // dead here; Redis credits it while the record lives
	}
	if b.ledger.toReturn > 0 && b.pot.Load() > 0 { // granted to a call that was under way when the rest was taken out of use
		b.drain() // a call gives back the whole pot or nothing
	}
	if now >= b.outUntil {
		b.ledger.burnt += b.ledger.toReturn // the record is over: nothing is out any more
		b.ledger.toReturn = 0
	}
}

// compose chooses what the next call is for: a reset, those in line, a renewal, or giving back.
func (b *Bucket) compose(now time.Duration, c Conditions) (Call, bool) {
	p := b.Policy()
	if p.Unset {
		return Call{}, false
	}
	if p.Counting == Logs {
		return b.composeLog(now, c)
	}
	tells := b.mustReport()
	if tells { // whatever is sent does
		b.probe = probeNot
	}
	s := b.size(c.Trip)
	b.leasing = !p.NoLease && s.pays(b.leasing)
	call := Call{Call: p.Call, ttl: p.ttl(s.period), wanted: now + p.Timeout, period: s.period}
	hold := b.live(now)

	if b.pending != nil && len(b.resets) > 0 && c.Clock {
		// This lifts the level to its room from wherever it is: never further below zero than a burst and a second's refill.
		all := 2*p.Cap + int64(min(p.refill(time.Second), lua.MostTokens)) + 1
		call.Hold, call.Ret, call.Refund, call.resets = hold, b.owedReturn(), all, len(b.resets)
		if p.Counting != Refills {
			call.Refund, call.Reset = 0, c.Server
		}
		return call, true
	}

	settles := b.settles() // only a call with a lease id can
	owes := settles || b.leaseState != nil && now < b.outUntil
	if a := b.asking(now + min(c.Trip, p.Budget/2)); a.n > 0 {
		call.forWaiters = a.allWait
		if !c.Clock || p.NoLease && (!settles || p.Brief) || a.n == 1 && !b.leasing && !owes {
			call.Direct, call.wanted = true, a.last
			call.Min, call.Want = a.first, b.withMore(a.cost)
			return call, true
		}
		if call.AtOnce = p.AtOnce; call.AtOnce {
			call.Min, call.Want = a.first, b.withMore(a.cost)
		} else {
			call.Min = max(a.first-hold, 1) // the hold keeps its room: asking for all of first could be refused for ever
			call.Want = max(call.Min, min(a.cost+a.more-hold, p.quarter()))
			if b.leasing {
				call.Want = s.want(p, hold, a.cost+a.more, call.Min)
			}
		}
		call.Hold, call.Ret, call.Refund = hold, b.owedReturn(), b.owedRefund()
		return call, true
	}
	probe := b.probe == probeNow
	b.probe = probeNot
	if !c.Clock { // no lease, and no refund, without a deadline; but a look, which teaches the clock
		call.Direct = probe || tells
		return call, call.Direct
	}

	home := b.retired || b.duty == returning && b.spent() == b.usedSpent // not when it was used since it was found idle
	extends := b.duty == extending && hold > 0
	b.duty = nothing
	switch {
	case home && owes:
		b.drain()
		call.returning = true
		call.Ret, call.Refund = b.ledger.toReturn, b.ledger.toRefund
	case extends:
		call.Hold = hold
	case probe: // never a look, which writes nothing: a replica and a full server would answer that
		call.Hold, call.Ret, call.Refund = hold, b.owedReturn(), b.owedRefund()
		if b.leasing {
			call.Min, call.Want = 1, s.want(p, hold, 0, 1)
		}
	case b.hasNews():
		call.Hold, call.Ret, call.Refund = hold, b.ledger.toReturn, b.ledger.toRefund
	case tells && owes: // it asks for nothing: what there is not would be held off from
		call.Hold = hold
	case tells: // a look, which writes when the limit is another
		call.Direct = true
	case b.leasing && !home && (b.leaseState == nil || hold <= b.low.Load()):
		call.Min, call.Want, call.Hold = 1, s.want(p, hold, 0, 1), hold
	default:
		return Call{}, false
	}
	return call, true
}

// asked is what those in line want of a call.
type asked struct {
	first   int64         // the cost of the first of them
	cost    int64         // of all of them, at most one burst
	more    int64         // besides, for others
	n       int           // their number
	last    time.Duration // when the last of them gives up
	allWait bool          // all of them wait and ask again
}

// asking marks those in line who wait until soonest, when an answer may be there, or longer.
func (b *Bucket) asking(soonest time.Duration) (a asked) {
	a.allWait = true
	for w := range b.queue() {
		w.asked, w.more = false, 0
		if w.until <= soonest || a.cost+w.cost > b.Policy().Cap {
			continue
		}
		if a.n == 0 {
			a.first = w.cost
		}
		w.asked = true
		a.cost += w.cost
		a.more += w.More
		a.n++
		a.last = max(a.last, w.until)
		a.allWait = a.allWait && w.Patient
	}
	return a
}

// withMore adds to the cost of those for whom a direct take asks what they want for others: a quarter of the burst at
// most, for it is lost with the reply.
func (b *Bucket) withMore(cost int64) int64 {
	for w := range b.queue() {
		if w.asked {
			w.more = min(w.More, b.Policy().quarter(), b.Policy().Cap-cost)
			cost += w.more
		}
	}
	return cost
}

// quiet reports whether all that a call is made for want it quiet, and there are any; see asking and [Bucket.Quiet].
func (b *Bucket) quiet(resets int) (quiet bool) {
	if b.pending == nil {
		return false
	}
	for _, w := range b.resets[:resets] {
		if quiet = w.Quiet; !quiet {
			return false
		}
	}
	for w := b.waiters.first; w != nil && resets == 0; w = w.next {
		if w.asked {
			if quiet = w.Quiet; !quiet {
				return false
			}
		}
	}
	return quiet
}

// Quiet reports whether the call seq is under way for nobody but waiters that are Quiet: nobody is to be told of it.
func (b *Bucket) Quiet(seq int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calling() && b.call.Seq == seq && b.call.quiet
}

// settles reports whether there is a refund or a debt to settle.
func (b *Bucket) settles() bool {
	return b.leaseState != nil && (b.ledger.toRefund > 0 || b.debt.admitted > 0)
}

// hasNews reports whether there is something to tell Redis that should not wait for a request.
func (b *Bucket) hasNews() bool {
	return b.leaseState != nil && (b.ledger.toReturn > 0 || b.ledger.toRefund > 0 || b.debt.certain > 0)
}

// toReturn reports the leased tokens that are to go back.
func (b *Bucket) owedReturn() int64 {
	if b.leaseState == nil {
		return 0
	}
	return b.ledger.toReturn
}

// toRefund reports the admitted tokens that are to go back.
func (b *Bucket) owedRefund() int64 {
	if b.leaseState == nil {
		return 0
	}
	return b.ledger.toRefund
}
