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
	b.view.update(c, r, b.denied.windows(), b.owing() > 0)
	b.denied.windows().replied(c, now, r)
	if c.settles != nil {
		b.lease.ledger.refundAnswered(c.settledNow, r)
	}
	if !c.Direct {
		b.acceptLease(now, c, r) // before it is known that there is no more: see Refuse
		b.lease.lower(now, c.Policy.numbers(), b.Policy())
	}
	d := b.denied.copy()
	renewal := d.replied(b.Policy(), c, r, now)
	b.denied.put(&d) // before anybody has a verdict
	b.charged(now, b.lease.orEmpty().outage.debt.certain)
	b.lease.renewFrom(renewal)
	for w := range b.pending.waiting() {
		w.Active = r.Active
	}
	if !c.leases() { // no lease covers what nobody takes any more, so it never enters the pot
		if rest := b.pending.handOut(r.Grant, c.sent, b.admits(b.remaining(0))); rest > 0 {
			b.refund(rest, b.LastStamp())
		}
	}
	b.pending.creditsAnswered(c, r, b.remaining(b.lease.live(now)), second)
	b.pending.serve(&b.hot, now, levelLeft(c, r), c.leases(), c.trip)
	b.deliver()
	b.account(now)
	b.deliver()
	if c.Reset > 0 && r.Flags&lua.Unapplied == 0 { // what was admitted until then is forgiven
		b.lease.forget(b.Policy(), b.denied.windows().debts.drop(c.sent))
	}
	if b.freezes() && c.Debt > 0 && b.lease.outage.debt.admitted > 0 { // more than was frozen, and no refill pays it
		b.view.probe = probeNow
		return b.send(), true
	}
	if b.pending != nil { // more have come
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
	l.outage.debt.accepted(c)
	l.outage.settled += c.Debt
	c.Policy.countPaid(c.certain)
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
	b.denied.windows().leased(b.Policy(), c, r)
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
