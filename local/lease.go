package local

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// leaseState is what stands between this process and Redis for one bucket: what is leased, what is
// to go back, what is owed, and whether Redis fails. A bucket that only ever takes tokens directly
// has none, and a nil *leaseState answers as an empty one; see orEmpty. The methods that change
// something and have a nil check do nothing then; all others need [Bucket.needLease] first.
//
// It fills a size class of the allocator (176 bytes): one more word costs 16 bytes per leased key.
type leaseState struct {
	pot     pot
	maxCost maxCost
	outage  outage
	ledger  ledger

	ack       int64         // highest seq of a lease call whose reply was accepted; unknownAck before the first call
	outUntil  time.Duration // until then Redis may count tokens as out to this process. Invariant: 0 or ≥ deadline
	lastGrant int64         // tokens of the last lease
	backOff   time.Duration // no call before then, because one has failed

	usedAt    time.Duration // when spent was first seen to be usedSpent
	usedSpent int64         // tokens
}

// unknownAck is the ack of a process that Redis does not know yet.
const unknownAck = -1

// emptyLease is read in place of a nil *leaseState, and never changed.
var emptyLease leaseState

// orEmpty returns l for reading, or an empty lease state if it is nil.
func (l *leaseState) orEmpty() *leaseState {
	if l == nil {
		return &emptyLease
	}
	return l
}

// take is [pot.take], if there is a pot.
func (l *leaseState) take(now time.Duration, n int64) (left int64, ok bool) {
	if l == nil {
		return 0, false
	}
	return l.pot.take(now, n)
}

// live is [pot.live], 0 without a pot.
func (l *leaseState) live(now time.Duration) int64 { return l.orEmpty().pot.live(now) }

// lives reports whether a lease has not ended yet.
func (l *leaseState) lives(now time.Duration) bool { return l != nil && !l.pot.over(now) }

// out reports whether Redis may count tokens as out to this process.
func (l *leaseState) out(now time.Duration) bool { return l != nil && now < l.outUntil }

// generation is the pot's.
func (l *leaseState) generation() int64 { return l.orEmpty().pot.generation.Load() }

// renewFrom allows renewals from a time on.
func (l *leaseState) renewFrom(at time.Duration) {
	if l != nil {
		l.pot.renewAt.Store(int64(at))
	}
}

// callSent is [pot.callSent].
func (l *leaseState) callSent() {
	if l != nil {
		l.pot.callSent()
	}
}

// extendAt is when a lease that still holds tokens must be seen to: what ends in the pot is burnt.
// At the edge of a fixed window it ends anyway: without that, each process made a call every 10 ms
// of the last 250 ms of each window.
//
// Far from Redis that is a round trip earlier, so that the answer is there in time.
func (l *leaseState) extendAt(p *Policy, w *windowState, far time.Duration) time.Duration {
	if w.endsWithWindow() {
		return never
	}
	return time.Duration(l.pot.deadline.Load()) - p.ttl(p.period(0), p.Timeout)/4 - far
}

// accepted settles what a call gave back, and adds its grant to the pot.
func (l *leaseState) accepted(now time.Duration, c Call, r lua.Reply) {
	if !c.leases() {
		r.Grant = 0
	}
	l.ack = c.Seq
	l.ledger.returnAccepted(c.Ret)
	l.ledger.refundAnswered(c.Refund-c.Given, r)
	end := c.sent + usable(min(c.ttl, micros(r.TTLLeft))) // counted from the sending: Redis counts from later
	l.ledger.burnt += l.pot.refill(now, r.Grant, end)
	l.outUntil = now + c.ttl
	if c.Hold+r.Grant == 0 {
		l.outUntil = 0
	}
	if c.Want > 0 {
		l.lastGrant = r.Grant
	}
}

// unspent is the part of what was granted that is not spent.
func (l *leaseState) unspent() int64 {
	l = l.orEmpty()
	return l.pot.tokens.Load() + l.ledger.unspent()
}

// giveBack empties the pot into what is to go back.
func (l *leaseState) giveBack() { l.ledger.toReturn += l.pot.empty() }

// burn empties the pot for nothing.
func (l *leaseState) burn() { l.ledger.burnt += l.pot.empty() }

// dropEnded takes tokens of a lease that is over out of the pot, and gives up what no record keeps
// any more.
func (l *leaseState) dropEnded(now time.Duration) {
	if l == nil {
		return
	}
	held := l.pot.tokens.Load() > 0
	// A call gives back the whole pot or nothing. Tokens are in the pot while others are to go back
	// if they were granted to a call that was under way when the pot was emptied.
	if held && (l.pot.over(now) || l.ledger.toReturn > 0) {
		l.giveBack() // Redis credits them while the record lives
	}
	if !l.out(now) {
		l.ledger.burnReturn() // the record is over
	}
}

// lower takes what is leased out of use if p is below the limit that it was leased under: it is to
// go back.
func (l *leaseState) lower(now time.Duration, was, p *Policy) {
	if p != was && l.out(now) && p.anyBelow(was) {
		l.giveBack()
	}
}

// used notes at now that so many tokens were spent in all.
func (l *leaseState) used(now time.Duration, spent int64) { l.usedAt, l.usedSpent = now, spent }

// expire notes that the clock that the lease's deadline is measured by stood still. All that Redis
// knows of this process is over, and what was to go back is burnt.
func (l *leaseState) expire() {
	l.pot.deadline.Store(0)
	l.burn()
	l.burnReturns()
	l.ack, l.outUntil = unknownAck, 0
	l.pot.newIdentity()
}

// burnReturns gives up what was to go back.
func (l *leaseState) burnReturns() {
	l.ledger.burnReturn()
	l.ledger.burnRefund(l.ledger.toRefund)
}

// goingBack reports the tokens that are to be returned and refunded.
func (l *leaseState) goingBack() (toReturn, toRefund int64) {
	l = l.orEmpty()
	return l.ledger.toReturn, l.ledger.toRefund
}

// hasNews reports whether there is something to report to Redis that should not wait for a request.
func (l *leaseState) hasNews() bool {
	return l != nil && (l.ledger.toReturn > 0 || l.ledger.toRefund > 0 || l.outage.debt.certain > 0)
}

// unanswered gives up the refund of a call: it counts at most once, so it is not sent again.
func (l *leaseState) unanswered(c Call) {
	if own := c.Refund - c.Given; own > 0 { // what settles a log states a cost, and is repeated
		l.ledger.burnRefund(own)
	}
}

// debtAccepted notes that Redis answers, and that it took the debt that a call reported.
func (l *leaseState) debtAccepted(c Call) {
	if l == nil {
		return
	}
	l.backOff = 0
	l.outage.debt.accepted(c)
	l.outage.settled += c.Debt
	c.Policy.countPaid(c.certain)
}

// pause forbids to ask until a time.
func (l *leaseState) pause(until time.Duration) {
	l.backOff = until
	l.renewFrom(until)
}

// backsOff reports whether a failure forbids to ask; see [Bucket.backsOff].
func (l *leaseState) backsOff(now time.Duration) bool { return now < l.backOffEnd() }

// backOffEnd is when asking is allowed again.
func (l *leaseState) backOffEnd() time.Duration { return l.orEmpty().backOff }

// owes reports whether there is a refund or a debt to settle.
func (l *leaseState) owes() bool {
	return l != nil && (l.ledger.toRefund > 0 || l.outage.debt.admitted > 0)
}

// owing reports the tokens that were admitted without Redis and are not settled. With fail-open
// that includes what is only counted so far.
func (l *leaseState) owing(m FailMode) int64 { return l.orEmpty().outage.owing(m) }

// forget notes that a part of the debt of a window is forgiven: nothing would count it.
func (l *leaseState) forget(p *Policy, forgotten debt) {
	if forgotten == (debt{}) {
		return
	}
	f := &l.outage
	f.debt.admitted -= forgotten.admitted
	f.debt.certain -= forgotten.certain
	f.settled += forgotten.admitted
	p.countPaid(forgotten.certain)
}

// giveUp forgives the debt, which it reports, and burns the refund.
func (l *leaseState) giveUp(m FailMode, w *windowState) (forgiven int64) {
	if l == nil {
		return 0
	}
	forgiven = l.outage.forgive(m)
	l.ledger.burnRefund(l.ledger.toRefund)
	w.forgetDebt()
	w.forgetRefunds()
	return forgiven
}

// stats reports what lease, ledger and fallback count.
func (l *leaseState) stats(m FailMode) Stats {
	l = l.orEmpty()
	s := l.outage.stats(m, l.outage.unbooked.Load())
	s.Returned, s.Burnt = l.ledger.returned, l.ledger.burnt
	s.Settled = l.outage.settled
	s.Held = l.pot.tokens.Load() + l.ledger.toReturn + l.ledger.toRefund
	return s
}
