package local

import "time"

// Reply is Redis' answer to a call that it accepted.
type Reply struct {
	Grant    int64
	Level    int64
	Retry    time.Duration // until Min tokens may be there; negative for never
	TTLLeft  time.Duration
	Epoch    int64
	Overflow int64
}

// Accept ends the call seq with Redis' answer. It reports accepted false, and does nothing, when that call was given up.
func (b *Bucket) Accept(now time.Duration, seq int64, r Reply) (effect Effect, accepted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.call
	if seq != c.Seq || seq == 0 {
		return Effect{}, false
	}
	b.call, b.late, b.failures, b.backOff = Call{}, false, 0, 0
	b.level.Store(r.Level)
	b.seenAt = c.sent
	b.ledger.granted += r.Grant
	b.debt.admitted -= c.Debt
	b.debt.sure -= c.sure
	b.ledger.settled += c.Debt
	// Read while something is owed, the overflow would hide what the bucket threw away since. What was admitted while
	// this call carried the rest was admitted about now.
	if (b.debt.admitted == 0 || c.Debt > 0) && r.Epoch != 0 {
		b.debt.seen, b.debt.epoch = r.Overflow, r.Epoch
	}

	// What is refused from now on, before anybody is told.
	short := r.Grant < c.Want
	switch {
	case short && r.Grant == 0:
		b.denial.learn(b.policy, c.Min, r.Level, c.sent, now, r.Retry)
	case short:
		b.denial = denial{level: float64(r.Level), at: c.sent} // for the retry time; the hold-off denies
	case c.Want > 0 || c.resets > 0:
		b.denial, b.holdOff = denial{}, 0
	}
	if short && !c.Direct && (r.Grant > 0 || r.Level < 1) { // else there is something for cheaper requests
		b.holdOff = c.sent + b.policy.between(0.75, 1.25, c.period)
	}
	b.askAt.Store(int64(b.holdOff))

	if c.Direct {
		b.acceptDirect(now, r.Grant)
	} else {
		b.acceptLease(now, c, r)
	}
	left := int64(plenty)
	if short {
		left = 0
		if r.Grant == 0 {
			left = max(r.Level, 0)
		}
	}
	b.serve(now, left)
	b.account(now)
	if b.line.n > 0 || len(b.resets) > 0 {
		return b.send(), true
	}
	return b.next(now), true
}

// acceptLease adds a grant to the pot. The order matters: what ended while the call was under way must not live again
// with the new deadline (it was sent as hold, and others may have its room by now).
func (b *Bucket) acceptLease(now time.Duration, c Call, r Reply) {
	b.ack = c.Seq
	b.ledger.ret -= c.Ret
	b.ledger.returned += c.Ret
	if c.resets == 0 {
		b.ledger.refund -= c.Refund
		b.ledger.refunded += c.Refund
	}
	if int64(now) >= b.deadline.Load() {
		b.burn()
	}
	b.pot.Add(r.Grant)
	b.deadline.Store(int64(c.sent + life(min(c.TTL, r.TTLLeft)))) // from the sending on: Redis counts from later

	b.outUntil = now + c.TTL
	if c.Hold+r.Grant == 0 {
		b.outUntil = 0
	}
	if c.Want > 0 {
		b.grant = r.Grant
	}
	b.low.Store(size(b.policy, &b.demand, c.trip, b.cost.Load(), b.grant).low)
	b.usedAt, b.usedSpent = now, b.spent()
	for _, w := range b.resets[:c.resets] {
		w.C <- Verdict{Outcome: Admitted, Left: b.remaining(b.live(now))}
	}
	b.resets = b.resets[c.resets:]
}

// life is how long a process may use a lease that Redis keeps for ttl.
func life(ttl time.Duration) time.Duration { return time.Duration(float64(ttl) * (1 - drift)) }

// acceptDirect hands a direct grant to those it was asked for. What nobody takes any more goes back: no lease covers it,
// so it never enters the pot.
func (b *Bucket) acceptDirect(now time.Duration, grant int64) {
	for w := b.line.first; w != nil; {
		next := w.next
		switch {
		case !w.asked:
		case w.cost <= grant:
			grant -= w.cost
			b.line.end(w, Verdict{Outcome: Admitted, Left: b.remaining(0)})
		}
		w = next
	}
	b.ledger.refund += grant
	b.inLine.Store(b.line.n > 0)
}

// Late ends the call seq, which reached the node after its deadline: nothing was done, and the node's clock is known
// better now. The call is made once more; the second time it has failed.
func (b *Bucket) Late(now time.Duration, seq int64) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if seq != b.call.Seq || seq == 0 {
		return Effect{}
	}
	c := b.call
	if b.late && c.Direct { // its time was too short, and nothing is wrong with the node
		b.call, b.late = Call{}, false
		b.askAt.Store(int64(now))
		b.end(now, Verdict{Outcome: Failed})
		return b.next(now)
	}
	if b.late {
		return b.fail(now)
	}
	b.late = true
	b.lose()
	b.home = c.home
	b.call = Call{}
	return b.send()
}

// Fail ends the call seq without an answer: it timed out, broke, or was refused. What it asked for may have been done;
// the next call's statements settle that. Everybody in line gets Failed, and the key asks no more for a while.
func (b *Bucket) Fail(now time.Duration, seq int64) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if seq != b.call.Seq || seq == 0 {
		return Effect{}
	}
	return b.fail(now)
}

func (b *Bucket) fail(now time.Duration) Effect {
	c := b.call
	b.lose()
	b.forgive()
	b.call, b.late = Call{}, false
	b.failures++
	longest := min(c.period<<min(b.failures, 20), maxBackoff)
	b.backOff = now + b.policy.between(0.5, 1, max(longest, minIdle))
	b.askAt.Store(int64(b.backOff))
	v := Verdict{Outcome: Failed, Left: b.remaining(b.live(now))}
	b.end(now, v)
	b.endResets(v)
	return b.next(now)
}

func (b *Bucket) endResets(v Verdict) {
	for _, w := range b.resets {
		w.C <- v
	}
	b.resets = nil
}

// lose gives up the refund of the call under way: it counts at most once, so it is not sent again.
func (b *Bucket) lose() {
	if b.call.resets == 0 {
		b.ledger.refund -= b.call.Refund
		b.ledger.burnt += b.call.Refund
	}
}

// forgive drops debt and refund of a retired bucket that could not be sent with its return: one try is what they are
// worth, or an outage would keep every evicted key, and a poisoned key for ever.
func (b *Bucket) forgive() {
	if b.retired {
		b.debt = debt{}
		b.ledger.burnt += b.ledger.refund
		b.ledger.refund = 0
	}
}
