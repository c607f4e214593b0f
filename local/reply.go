package local

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Accept ends the call seq with Redis' answer. It reports accepted false, and does nothing, if that call was given up.
func (b *Bucket) Accept(now time.Duration, seq int64, r lua.Reply) (effect Effect, accepted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.pending.end(seq)
	if !ok {
		return Effect{}, false
	}
	second := b.pending.again
	b.pending.again, b.view.failures = false, 0
	b.granted += r.Grant
	b.lease.answered(c)
	b.see(c, r)
	b.windows().replied(c, now, r)
	if c.settles != nil {
		b.lease.ledger.refundAnswered(c.settledNow, r)
	}
	if !c.Direct {
		b.acceptLease(now, c, r) // before it is known that there is no more: see Refuse
		b.lower(now, c.Policy.numbers(), b.Policy())
	}
	b.lease.renewFrom(b.learn(now, c, r)) // before anybody has a verdict
	for w := range b.pending.waiting() {
		w.Active = r.Active
	}
	if !c.leases() {
		b.handOut(r.Grant)
	}
	b.endCredit(now, c, r, second)
	b.serve(now, levelLeft(c, r), c.leases())
	b.account(now)
	b.conclude()
	if c.Reset > 0 && r.Flags&lua.Unapplied == 0 { // what was admitted until then is forgiven
		b.forget(b.windows().debts.drop(c.sent))
	}
	if b.freezes() && c.Debt > 0 && b.lease.fallback.debt.admitted > 0 { // more than was frozen, and no refill pays it
		b.view.probe = probeNow
		return b.send(), true
	}
	if b.pending != nil || b.mustReport() { // more have come, or another limit
		return b.send(), true
	}
	return b.next(now), true
}

// levelLeft is what Redis has left for those who got nothing of a grant.
func levelLeft(c Call, r lua.Reply) int64 {
	switch {
	case r.Grant >= c.Want:
		return unlimited
	case r.Grant == 0:
		return max(r.Level, 0)
	}
	return 0
}

// answered notes that Redis answers, and that it took the debt that a call reported.
func (l *leaseState) answered(c Call) {
	if l == nil {
		return
	}
	l.backOff = 0
	l.fallback.debt.accepted(c)
	l.fallback.settled += c.Debt
	c.Policy.countPaid(c.certain)
}

// learn notes what a reply says about what is refused from now on. It reports until when no renewal makes sense. What
// comes for those who wait and ask again leaves the hold-off of the others as it was.
func (b *Bucket) learn(now time.Duration, c Call, r lua.Reply) (renewal time.Duration) {
	var d denial
	old := b.denied.Load()
	if old != nil {
		d = *old
	}
	short, byOther := r.Grant < c.Want, r.Flags&lua.OtherTerms != 0
	switch {
	case short && r.Grant == 0:
		d.refused(b.Policy(), c.Min, r.Level, c.sent, now, micros(r.Retry), byOther)
	case c.forWaiters && !byOther && (short || r.Level < 1) && d.granted(b.Policy(), c, r, now): // so the next need not ask to know
	case short:
		d.learn(b.Policy(), float64(r.Level), c.sent) // for the retry time; the hold-off denies
		if d.nanos == 0 && r.Retry > 0 {
			d.refused(b.Policy(), 1, r.Level, c.sent, now, micros(r.Retry), byOther)
		}
	case c.Want > 0 || c.credits > 0:
		d = denial{windows: d.windows, reserved: d.reserved, reservedUntil: d.reservedUntil}
	default:
		d.correct(b.Policy(), r.Level, c.sent)
	}
	renewal = d.holdOff
	if short && c.leases() && b.holdsOff(r) {
		renewal = c.sent + b.Policy().between(0.75, 1.25, b.Policy().holdOff(c.period))
		if d.windows.endsWithWindow() {
			renewal = min(renewal, now+micros(r.TTLLeft)) // then another window begins, and nothing of it is used
		}
	}
	if !c.forWaiters && d.leaves(c, r) {
		d.holdOff = renewal
	}
	b.deny(old, &d)
	return renewal
}

// leaves reports whether a hold-off leaves something to others, or spares calls. Otherwise Redis has told when to ask.
func (d *denial) leaves(c Call, r lua.Reply) bool { return d.nanos > 0 || c.others(r) > 0 }

// holdsOff reports whether everything is denied for a while after a short grant. As a rule what is left is for others,
// or, if nothing was granted, for cheaper requests. A sliding window and a slow limit are asked as long as there is
// something left: as a window fills up, the grants get smaller and more frequent, down to one token at a time, and nobody
// is refused before it is full.
func (b *Bucket) holdsOff(r lua.Reply) bool {
	p := b.Policy()
	return r.Level < 1 || r.Grant > 0 && p.Window == 0 && !p.slow()
}

// acceptLease settles what a call stated, and adds its grant to the pot.
func (b *Bucket) acceptLease(now time.Duration, c Call, r lua.Reply) {
	l := b.lease
	if !c.leases() {
		r.Grant = 0
	}
	l.ack = c.Seq
	l.ledger.returnAccepted(c.Ret)
	l.ledger.refundAnswered(c.Refund-c.Given, r)
	end := c.sent + usable(min(c.ttl, micros(r.TTLLeft))) // counted from the sending: Redis counts from later
	l.ledger.burnt += l.pot.refill(now, r.Grant, end)
	b.windows().leased(b.Policy(), c, r)
	l.outUntil = now + c.ttl
	if c.Hold+r.Grant == 0 {
		l.outUntil = 0
	}
	if c.Want > 0 {
		l.lastGrant = r.Grant
	}
	l.pot.low.Store(b.size(now, c.trip).low)
	// A lease of a slow limit that was only prolonged is as idle as before.
	if spent := b.spent(); c.Want > 0 || spent != l.usedSpent || !b.Policy().slow() {
		l.used(now, spent)
	}
}

// handOut gives a direct grant to those it was asked for. What nobody takes any more goes back: no lease covers it, so
// it never enters the pot.
func (b *Bucket) handOut(grant int64) {
	rest := grant // when all have what they cost
	for w := range b.pending.waiting() {
		if w.asked && w.cost <= rest {
			rest -= w.cost
		}
	}
	for w := range b.pending.waiting() {
		if w.asked && w.cost <= grant {
			w.MoreGranted = min(w.more, rest)
			rest -= w.MoreGranted
			grant -= w.cost + w.MoreGranted
			b.pending.decide(w, b.admits(b.remaining(0)))
		}
	}
	if grant > 0 {
		b.refund(grant, b.LastStamp())
	}
}

// endCredit answers those whose credits a call carried out. One that Redis did not carry out, because its deadline
// lay too far ahead on a clock that was set back, is made a second time: this reply has told what the clock is.
func (b *Bucket) endCredit(now time.Duration, c Call, r lua.Reply, second bool) {
	if c.credits == 0 {
		return
	}
	v := Verdict{Outcome: Admitted, Left: b.remaining(b.lease.live(now))}
	if r.Flags&lua.Unapplied != 0 && c.settles == nil { // of a log it is the settling that came to nothing
		if !second {
			b.pending.again = true
			return
		}
		v.Outcome = Failed
	}
	b.pending.endCredits(c.credits, v)
}
