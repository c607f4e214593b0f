package local

import "time"

// probe says whether a call is wanted that nobody waits for.
type probe uint8

const (
	probeNot   probe = iota
	probeLater       // to find out whether Redis answers, when the back-off is over
	probeNow         // the same, now
)

// retries is how many failed calls in a row are followed by another that no request asks for: as many as open a
// breaker. After that either the breaker is open, or the node answers others and this key can wait until somebody wants
// it.
const retries = 3

// maxFailures bounds the count of failures, so that a pause doubled as often fits a time.Duration.
const maxFailures = 20

// Fail ends the call seq without an answer: it timed out or broke. What it asked for may have been done; what the next
// call states settles that. Everybody who waits gets Failed, and the key asks no more for a while.
func (b *Bucket) Fail(now time.Duration, seq int64) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.pending.end(seq)
	if !ok {
		return Effect{}
	}
	b.fail(now, c, Failed)
	return b.next(now)
}

// Late ends the call seq, which reached the node after its deadline: nothing was done, and the node's clock is known
// better now. The call is made a second time; if that is late too, it has failed.
func (b *Bucket) Late(now time.Duration, seq int64) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.pending.end(seq)
	if !ok {
		return Effect{}
	}
	switch second := b.pending.again; {
	case second && c.Direct: // its time was too short, and nothing is wrong with the node
		b.pending.again = false
		b.lease.renewFrom(now)
		b.pending.serveAsked(&b.hot, now, Verdict{Outcome: Failed})
		b.deliver()
		if b.pending.count() > 0 { // they came when it was under way, and have time
			return b.send()
		}
		return b.next(now)
	case second:
		b.fail(now, c, Failed)
		return b.next(now)
	}
	b.pending.again = true
	b.view.unanswered(c)
	b.lease.unanswered(c)
	if c.returning {
		b.upkeep = returning
	}
	return b.send()
}

// Rejected ends the call seq, which was refused because of its bucket alone: another program has written to it, it is
// damaged, or what the call says can never be accepted.
//
// It is like Fail, but what was to be settled is given up the third time in a row, because every later call would carry
// it and fail too. A retired bucket gives it up at once: there is nowhere to go, and closing a process would wait for
// nothing until the lease ends. Tokens are burnt, so nothing is minted. It reports the debt that is forgiven. Those who
// wait look again once there is nothing left to settle: what they ask for may well be granted.
func (b *Bucket) Rejected(now time.Duration, seq int64) (e Effect, forgiven int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.pending.end(seq)
	if !ok {
		return Effect{}, 0
	}
	b.view.unanswered(c)
	b.lease.unanswered(c)
	carried := c.credits == 0 && c.Ret+c.Refund+c.settledNow+c.Debt > 0
	c.Refund, c.Given = 0, 0 // burnt
	if b.lease != nil && (b.retired() || b.view.failures+1 >= retries) {
		b.account(now)
		forgiven = b.lease.giveUp(b.Policy().FailMode, b.denied.windows())
		b.lease.ledger.burnReturn()
		if b.retired() {
			b.lease.burn()
			b.lease.pot.deadline.Store(0)
		}
		if b.lease.live(now) == 0 {
			b.lease.outUntil = 0
		}
	}
	toReturn, toRefund := b.lease.goingBack()
	if !carried || b.retired() || b.owing()+toRefund+toReturn > 0 {
		b.fail(now, c, Failed)
		return b.next(now), forgiven
	}
	b.fail(now, c, Outdated)
	b.needLease().pause(now)
	return b.next(now), forgiven
}

// Retry has a call that just failed made again as soon as the key asks again at all, which is within a second. Leases
// make calls rare: if each call waited for the next request, three rare requests would have to find out that Redis is
// gone, and a lease could end before anybody knew that it was not renewed.
func (b *Bucket) Retry(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if 0 < b.view.failures && b.view.failures < retries && b.life == inUse && b.view.probe != probeNow {
		b.view.probe = probeLater
	}
	return b.next(now)
}

// Probe asks for a call that finds out whether Redis answers again. Nobody waits for it, and it settles the debt.
func (b *Bucket) Probe() Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == closed {
		return Effect{}
	}
	b.view.probe = probeNow
	return b.send()
}

// Drop takes the bucket out of the queue because its node's breaker lets nothing through. Those who wait get Failed.
// The key asks again after a part of its period, so that not all keys come at once when the breaker closes. A period
// may be a minute, but no key waits longer than after a failure.
func (b *Bucket) Drop(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.queued {
		return Effect{}
	}
	b.queued, b.view.probe = false, probeNot
	b.pending.stopRepeating()
	b.forgive()
	pause := b.Policy().retryPause(0)
	if b.retired() {
		pause = maxBackoff // nobody waits for it, and there may be thousands
	}
	b.needLease().pause(now + b.Policy().pauseOf(pause))
	b.pending.failAll(&b.hot, now, Verdict{Outcome: Failed})
	b.deliver()
	return b.next(now)
}

// fail ends a call without an answer. outcome is for those who wait for tokens.
func (b *Bucket) fail(now time.Duration, c Call, outcome Outcome) {
	b.view.unanswered(c)
	b.lease.unanswered(c)
	b.forgive()
	b.pending.stopRepeating()
	b.view.failures = min(b.view.failures+1, maxFailures)
	longest := min(c.period<<b.view.failures, maxBackoff)
	if c.first {
		longest = min(longest, connecting*c.Policy.Timeout)
	}
	b.needLease().pause(now + b.Policy().pauseOf(max(longest, minIdle)))
	b.pending.failAll(&b.hot, now, Verdict{Outcome: outcome, Left: b.remaining(b.lease.live(now))})
	b.deliver()
}

// forgive drops debt and refund of a retired bucket that could not be sent with its return. They are worth one try, or
// an outage would keep every evicted key, and a damaged key would stay for ever.
func (b *Bucket) forgive() {
	if b.retired() {
		b.lease.giveUp(b.Policy().FailMode, b.denied.windows())
	}
}

// Expire drops the lease, and burns what was to go back, because the clock that the lease's deadline is measured by stood
// still while the machine was suspended. The process goes on under another lease id, because it may be a copy of one that
// runs on. Such a copy gives the same tokens back, so this one must not.
func (b *Bucket) Expire(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.needLease().expire() // it knows what is of the old id
	b.denied.windows().forgetRefunds()
	b.view.doubt() // nobody here knows how long the clock stood still
	c, ok := b.pending.cancel()
	if !ok {
		return b.next(now)
	}
	c.Refund = 0 // burnt
	b.fail(now, c, Failed)
	return b.next(now)
}
