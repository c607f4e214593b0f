package local

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// UnderWay is what the owner may ask of the call under way before it accepts the reply.
type UnderWay struct {
	Charged int64 // tokens of charges that it reports
	Leased  bool  // a lease lives. If a reply says that its record is not there, Redis has lost writes

	// The bucket that Redis was last seen to have must still be there, or is likely to be.
	Lives, LikelyLives bool
}

// UnderWay describes the call seq, which named the bucket epoch. If that call is no longer under
// way, it reports only whether the bucket lives.
func (b *Bucket) UnderWay(now time.Duration, seq, epoch int64) (u UnderWay) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if u.Lives, u.LikelyLives = b.hot.lives(now, epoch); b.pending.carries(seq) {
		u.Charged, u.Leased = b.pending.call.certain, b.hot.lease.lives(now)
	}
	return u
}

// Accept ends the call seq with Redis' answer. It reports accepted false, and does nothing, if that
// call was given up.
func (b *Bucket) Accept(now time.Duration, seq int64, r lua.Reply) (effect Effect, accepted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.pending.end(seq)
	if !ok {
		return Effect{}, false
	}
	second := b.pending.again
	b.pending.again, b.hot.view.failures = false, 0
	b.granted += r.Grant
	b.hot.lease.debtAccepted(c)
	b.hot.view.update(c, r, b.hot.denied.windows(), b.hot.owing() > 0)
	b.hot.denied.windows().replied(c, now, r)
	if c.settles != nil {
		b.hot.lease.ledger.refundAnswered(c.settledNow, r)
	}
	if l := b.hot.lease; !c.Direct { // before it is known that there is no more: see Refuse
		l.accepted(now, c, r)
		b.hot.denied.windows().leased(b.Policy(), c, r)
		l.pot.low.Store(b.size(now, c.trip).low)
		// A lease of a slow limit that was only prolonged is as idle as before.
		if spent := b.spent(); c.Want > 0 || spent != l.usedSpent || !b.Policy().slow() {
			l.used(now, spent)
		}
		l.lower(now, c.Policy, b.Policy())
	}
	d := b.hot.denied.copy()
	renewal := d.replied(b.Policy(), c, r, now)
	b.hot.denied.put(&d) // before anybody has an outcome
	if c.Policy.numbers() != b.Policy().numbers() || !c.Policy.sameEnds(b.Policy()) {
		b.hot.denied.clear() // it refused by another limit: see SetPolicy
	}
	b.hot.charged(now, b.hot.lease.orEmpty().outage.debt.certain)
	b.hot.lease.renewFrom(renewal)
	for w := range b.pending.waiting() {
		w.Active = r.Active
	}
	if !c.leases() { // no lease covers what nobody takes any more, so it never enters the pot
		if rest := b.pending.handOut(&b.hot, r.Grant, c.sent); rest > 0 {
			b.refund(rest, b.hot.LastStamp())
		}
	}
	b.pending.creditsAnswered(c, r, second)
	b.pending.serve(&b.hot, now, levelLeft(c, r), c.leases(), c.trip)
	b.deliver()
	b.account(now)
	b.deliver()
	if c.Reset > 0 && r.Flags&lua.Unapplied == 0 { // what was admitted until then is forgiven
		b.hot.lease.forget(b.Policy(), b.hot.denied.windows().debts.drop(c.sent))
	}
	if b.hot.freezes() && c.Debt > 0 && b.hot.lease.outage.debt.admitted > 0 { // more than was frozen, and no refill pays it
		b.hot.view.probe = probeNow
		return b.send(), true
	}
	if b.pending != nil { // more have come
		return b.send(), true
	}
	return b.next(now), true
}

// levelLeft is what Redis has left for callers that got nothing of a grant.
func levelLeft(c Call, r lua.Reply) int64 {
	switch {
	case r.Grant >= c.Want:
		return unlimited
	case r.Grant == 0:
		return max(r.Level, 0)
	}
	return 0
}

// Late ends the call seq, which reached the node after its deadline: Redis did nothing, and its
// answer tells the node's clock more exactly. Or it reached the bucket in another window of the
// calendar than it was made for: then stamp, which is 0 otherwise, is the bucket's time. Or the
// caller that made the call left before it failed: then Redis may have done what it asked for, and
// the next call settles that. The call is made a second time. If that is late too, it has failed.
func (b *Bucket) Late(now time.Duration, seq, stamp int64) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hot.denied.windows().tells(stamp)
	c, ok := b.pending.end(seq)
	if !ok {
		return Effect{}
	}
	switch second := b.pending.again; {
	case second && c.Direct: // its time was too short, and nothing is wrong with the node
		b.pending.again = false
		b.hot.lease.renewFrom(now)
		b.pending.serveAsked(&b.hot, now, because(Unavailable))
		b.deliver()
		if b.pending.count() > 0 { // they came when it was under way, and have time
			return b.send()
		}
		return b.next(now)
	case second:
		b.fail(now, c, Unavailable)
		return b.next(now)
	}
	b.pending.again = true
	b.hot.view.unanswered(c)
	b.hot.lease.unanswered(c)
	if c.returning {
		b.hot.upkeep = returning
	}
	return b.send()
}

// Rejected ends the call seq, which was refused because of its bucket alone: another program has
// written to it, it is damaged, or what the call says can never be accepted.
//
// It is like Fail, but the third time in a row it gives up what was to be settled, because every
// later call would carry that and fail too. A retired bucket gives it up at once: no call can
// deliver it, and a process that closes would wait for the lease to end. Tokens are burnt, so none
// are minted. Rejected reports the debt that is forgiven. Once nothing is left to settle, callers
// that wait ask again: they may well be granted tokens.
func (b *Bucket) Rejected(now time.Duration, seq int64) (e Effect, forgiven int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.pending.end(seq)
	if !ok {
		return Effect{}, 0
	}
	b.hot.view.unanswered(c)
	b.hot.lease.unanswered(c)
	carried := c.credits == 0 && c.Ret+c.Refund+c.settledNow+c.Debt > 0
	c.Refund, c.Given = 0, 0 // burnt
	if b.hot.lease != nil && (b.hot.retired() || b.hot.view.failures+1 >= retries) {
		b.account(now)
		forgiven = b.hot.lease.giveUp(b.Policy().FailMode, b.hot.denied.windows())
		b.hot.lease.ledger.burnReturn()
		if b.hot.retired() {
			b.hot.lease.burn()
			b.hot.lease.pot.deadline.Store(0)
		}
		if b.hot.lease.live(now) == 0 {
			b.hot.lease.outUntil = 0
		}
	}
	toReturn, toRefund := b.hot.lease.goingBack()
	if !carried || b.hot.retired() || b.hot.owing()+toRefund+toReturn > 0 {
		b.fail(now, c, Unavailable)
		return b.next(now), forgiven
	}
	b.fail(now, c, Outdated)
	b.needLease().pause(now)
	return b.next(now), forgiven
}

// Fail ends the call seq without an answer: it timed out or broke. Redis may have done what it
// asked for, and the next call settles that. All callers that wait get Unavailable, and the key
// asks no more for a while.
//
// If again is true, the key asks again within a second, even if no request wants it. Leases make
// calls rare. If each call waited for the next request, it would take three rare requests to find
// out that Redis is gone, and a lease could end before anybody knew that it was not renewed. After
// the first failure it asks again at once, because most pauses of Redis are short: until there is
// an answer, requests go by the fail mode, and none waits.
func (b *Bucket) Fail(now time.Duration, seq int64, again bool) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.pending.end(seq)
	if ok {
		b.fail(now, c, Unavailable)
	} else if !again {
		return Effect{}
	}
	v := &b.hot.view
	if again && 0 < v.failures && v.failures < retries && b.hot.life == inUse && !b.hot.queued {
		if v.probe = probeLater; ok && v.failures == 1 {
			v.probe = probeNow
			return b.send()
		}
	}
	return b.next(now)
}

// maxFailures bounds the count of failures, so that a pause that doubles with each but the second
// fits a time.Duration.
const maxFailures = 20

// fail ends a call without an answer. reason is for those who wait for tokens.
func (b *Bucket) fail(now time.Duration, c Call, reason Reason) {
	b.hot.view.unanswered(c)
	b.hot.lease.unanswered(c)
	b.hot.forgive()
	b.pending.stopRepeating()
	b.hot.view.failures = min(b.hot.view.failures+1, maxFailures)
	longest := min(c.period<<max(b.hot.view.failures-1, 1), maxBackoff) // the second failure follows the first at once
	if c.first {
		longest = min(longest, connecting*c.Policy.Timeout)
	}
	b.needLease().pause(now + b.Policy().pauseOf(max(longest, minIdle)))
	b.pending.failAll(&b.hot, now, b.hot.decided(reason, Failover, b.hot.remaining(b.hot.lease.live(now)), 0))
	b.deliver()
}

// Probe asks for a call that finds out whether Redis answers again. Nobody waits for it, and it
// settles the debt.
func (b *Bucket) Probe() Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hot.life == closed {
		return Effect{}
	}
	b.hot.view.probe = probeNow
	return b.send()
}

// Drop takes the bucket out of the queue because its node's breaker lets nothing through. Callers
// that wait get Unavailable. The key asks again after a part of its period, so that not all keys
// come at once when the breaker closes. A period may be a minute, but no key waits longer than
// after a failure.
func (b *Bucket) Drop(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.hot.queued {
		return Effect{}
	}
	b.hot.queued, b.hot.view.probe = false, probeNot
	b.pending.stopRepeating()
	b.hot.forgive()
	pause := b.Policy().retryPause(0)
	if b.hot.retired() {
		pause = maxBackoff // nobody waits for it, and there may be thousands
	}
	b.needLease().pause(now + b.Policy().pauseOf(pause))
	b.pending.failAll(&b.hot, now, because(Unavailable))
	b.deliver()
	return b.next(now)
}
