package local

import "time"

// Conditions are a node's, at the moment of sending.
type Conditions struct {
	Seq   int64         // for this call: from one counter per process, ever rising
	Clock bool          // the node's clock is known, so that it understands a deadline
	Trip  time.Duration // 99th percentile of the node's round trips
	Fleet int64         // processes that share the limit, ≥ 1
}

// Call is what to send. All its statements are absolute, so a copy of it does no harm.
type Call struct {
	Seq    int64
	Direct bool // tokens for those in line, without a lease: then Ack, Hold, Ret, Refund and Debt are 0

	Want, Min   int64
	Ack, Hold   int64
	Ret, Refund int64
	Debt, Owed  int64 // admitted alone; the part that is owed in any case
	Seen, Epoch int64 // the bucket's overflow when nothing was owed, and of which bucket
	TTL         time.Duration
	Deadline    time.Duration // from here on the node should do nothing
	Fleet       int64

	sent   time.Duration
	trip   time.Duration
	period time.Duration
	sure   int64 // part of Debt that no refill pays
	resets int   // how many of the bucket's resets it carries out
	home   bool  // gives everything back
}

// Reply is Redis' answer to a call that it accepted.
type Reply struct {
	Grant    int64
	Level    int64
	Retry    time.Duration // until Min tokens may be there; negative for never
	TTLLeft  time.Duration
	Epoch    int64
	Overflow int64
}

// refundDelay is how long refunded tokens wait for another call of their key to ride on; with a call's own time they are
// back within 50 ms.
const refundDelay = 25 * time.Millisecond

// Begin says what to send now that the queue's turn has come. The call it returns must end with Accept, Late or Fail. A
// call of Seq 0 means that nothing is to be sent any more; only then is there an Effect.
func (b *Bucket) Begin(now time.Duration, c Conditions) (Call, Effect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queued = false
	if b.closed || b.call.Seq != 0 {
		return Call{}, Effect{}
	}
	if b.pot.Load() > 0 && int64(now) >= b.deadline.Load() {
		b.drain() // dead here; Redis credits it while the record lives
	}
	if now >= b.outUntil {
		b.ledger.burnt += b.ledger.ret // the record is over: nothing is out any more
		b.ledger.ret = 0
	}
	b.share.tell(b.policy, now, c.Fleet)
	b.account(now)
	call, ok := b.compose(now, c)
	cost := b.cost.Load()
	b.cost.Store(cost - (cost+7)/8) // old costs fade
	if !ok {
		b.late = false
		b.endResets(Verdict{Outcome: Failed})                             // without the node's clock there is no refund
		b.askAt.Store(int64(now + max(b.policy.period(c.Trip), minIdle))) // do not look again at each decision
		b.forgive()
		effect := b.next(now)
		if effect.Send { // what cannot be sent now (the node's clock is unknown) would spin
			b.queued = false
			effect = Effect{Check: now + max(b.policy.period(c.Trip), minIdle)}
		}
		return Call{}, effect
	}
	call.Seq, call.Fleet, call.sent, call.trip = c.Seq, c.Fleet, now, c.Trip
	call.Epoch, call.Seen = b.debt.epoch, b.debt.seen
	if !call.Direct {
		if !b.known {
			b.known, b.ack = true, c.Seq-1 // whatever an earlier state of this key was granted counts as spent
		}
		call.Ack = b.ack
		// The record will end one ttl after this call is executed, even if its reply is lost and an earlier, longer ttl
		// was accepted: from here on the pot lives no longer than that.
		if end := int64(now + life(call.TTL)); call.Hold > 0 && b.deadline.Load() > end {
			b.deadline.Store(end)
		}
		call.Debt = b.debt.admitted
		call.sure = b.debt.sure
		call.Owed = min(call.Debt, call.sure+b.share.missing(now))
		// The call may be executed until its deadline, and its record then lives for one ttl.
		b.outUntil = max(b.outUntil, now+b.policy.Timeout+call.TTL)
	}
	b.call = call
	b.gen.Add(1)
	b.askAt.Store(never)
	return call, Effect{}
}

// compose chooses what the next call is for: a reset, those in line, a renewal, or giving back.
func (b *Bucket) compose(now time.Duration, c Conditions) (Call, bool) {
	p := b.policy
	s := size(p, &b.demand, c.Trip, b.cost.Load(), b.grant)
	b.leasing = !p.NoLease && s.pays(b.leasing)
	call := Call{TTL: p.ttl(s.period), Deadline: now + p.Timeout, period: s.period}
	hold := b.live(now)

	if n := len(b.resets); n > 0 && c.Clock {
		// A refund of two bursts lifts the level to its room from wherever it is: it is never below −Cap.
		call.Hold, call.Ret, call.Refund, call.resets = hold, b.ledger.ret, 2*p.Cap, n
		return call, true
	}

	owes := now < b.outUntil || b.ledger.refund > 0 || b.debt.admitted > 0
	if first, cost, n, last := b.asking(now + min(c.Trip, p.Budget/2)); n > 0 {
		call.Min, call.Want = first, cost
		if !c.Clock || p.NoLease || n == 1 && !b.leasing && !owes {
			call.Direct, call.Deadline = true, last
			return call, true
		}
		call.Min = max(first-hold, 1) // the hold keeps its room: asking for all of first could be refused for ever
		call.Want = max(call.Min, min(cost-hold, p.quarter()))
		if b.leasing {
			call.Want = s.want(p, hold, cost, call.Min)
		}
		call.Hold, call.Ret, call.Refund = hold, b.ledger.ret, b.ledger.refund
		return call, true
	}
	if !c.Clock {
		return Call{}, false // no lease, and no refund, without a deadline
	}

	probe := b.probe
	b.probe = false
	home := b.retired || b.home && b.spent() == b.usedSpent // not when it was used since it was found idle
	extend := b.extend && hold > 0
	b.home, b.extend = false, false
	switch {
	case home && owes:
		b.drain()
		call.home = true
		call.Ret, call.Refund = b.ledger.ret, b.ledger.refund
	case extend:
		call.Hold = hold
	case probe && (b.leasing || owes):
		call.Hold = hold
		if b.leasing {
			call.Min, call.Want = 1, s.want(p, hold, 0, 1)
		}
	case probe:
		call.Direct = true // a look: it takes nothing and leaves no record
	case b.ledger.ret > 0 || b.ledger.refund > 0 || b.debt.sure > 0:
		call.Hold, call.Ret, call.Refund = hold, b.ledger.ret, b.ledger.refund
	case b.leasing && !home && hold <= b.low.Load():
		call.Min, call.Want, call.Hold = 1, s.want(p, hold, 0, 1), hold
	default:
		return Call{}, false
	}
	return call, true
}

// asking marks those in line who wait until soonest, when an answer may be there, or longer, and reports the cost of the first of them, of all of them (at most
// one burst), their number, and when the last of them gives up.
func (b *Bucket) asking(soonest time.Duration) (first, cost int64, n int, last time.Duration) {
	for w := b.line.first; w != nil; w = w.next {
		w.asked = false
		if w.until <= soonest || cost+w.cost > b.policy.Cap {
			continue
		}
		if n == 0 {
			first = w.cost
		}
		w.asked = true
		cost += w.cost
		n++
		last = max(last, w.until)
	}
	return first, cost, n, last
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
