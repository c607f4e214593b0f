package local

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Accept ends the call seq with Redis' answer. It reports accepted false, and does nothing, when that call was given up.
func (b *Bucket) Accept(now time.Duration, seq int64, r lua.Reply) (effect Effect, accepted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.ended(seq)
	if !ok {
		return Effect{}, false
	}
	again := b.again // the call was made once more
	b.again, b.failures = false, 0
	b.level.Store(r.Level)
	b.seenAt = c.sent
	b.windows().lasts(c, r, b.epoch)
	b.certainty = roundedDown
	switch {
	case c.others(r) > 0:
		b.certainty = doubtful
	case r.Level >= c.Policy.Cap-c.Hold-r.Grant: // there cannot be more
		b.certainty = exact
	}
	b.granted += r.Grant
	if b.leaseState != nil {
		b.backOff = 0
		b.debt.admitted -= c.Debt
		b.debt.certain -= c.certain
		b.ledger.settled += c.Debt
	}
	// Read while something is owed, the overflow would hide what the bucket threw away since. What was admitted while
	// this call carried the rest was admitted about now.
	if (b.leaseState == nil || b.owing() == 0 || c.Debt > 0) && r.Epoch != 0 {
		b.seen, b.epoch = r.Overflow, r.Epoch
	} else if r.Epoch != b.epoch {
		b.certainty = doubtful // the next reply, of the same bucket, will say that it is another one
	}
	b.stamped(c, now, r)
	if !c.Direct {
		b.acceptLease(now, c, r) // before it is known that there is no more: see Refuse
		b.lower(now, c.Policy.numbers(), b.Policy())
	}
	b.askFrom(b.learn(now, c, r)) // before anybody is told
	for w := range b.queue() {
		w.Active = r.Active
	}
	if !c.lends() {
		b.handOut(now, r.Grant)
	}
	b.endReset(now, c, r, again)
	short := r.Grant < c.Want
	left := int64(unlimited)
	if short {
		left = 0
		if r.Grant == 0 {
			left = max(r.Level, 0)
		}
	}
	b.serve(now, left)
	b.account(now)
	b.conclude()
	if b.freezes() && c.Debt > 0 && b.debt.admitted > 0 { // more than was frozen, and no refill pays it
		b.probe = probeNow
		return b.send(), true
	}
	if b.pending != nil || b.mustReport() { // more have come, or another limit
		return b.send(), true
	}
	return b.next(now), true
}

// Lost reports whether a reply to the call seq which says that the one before is not on record means that Redis lost
// writes: that record was to live on. Else it is over, as it should be, or this process began anew.
func (b *Bucket) Lost(now time.Duration, seq int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leaseState != nil && b.calling() && b.call.Seq == seq && int64(now) < b.deadline.Load()
}

// Outlives reports whether the bucket that Redis was last seen to have must still be there at now, by all that is known here: it
// cannot be full by then. Otherwise, if it is not there, it may just have expired.
//
// It errs on the side of having expired: the level may have been up to a token higher than was told, was as of some time after
// the call was sent, and Redis' clock may run faster than the process'. Where others hold leases, or a call without an answer
// may have given something back, nothing is known. A Reset by others, and what they give back of what was admitted, it cannot see.
//
// named is the epoch that the call named. A refund names the bucket that it was taken from, which may be an earlier one.
func (b *Bucket) Outlives(now time.Duration, named int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.certainty == doubtful || b.closed || named != b.epoch {
		return false
	}
	p, level := b.Policy(), b.level.Load()
	drifted := time.Duration(float64(now-b.seenAt) * drift)
	if w := b.windows(); w != nil {
		return now+drifted < w.counts
	}
	most := float64(level)
	if b.certainty == roundedDown {
		most++
	}
	return most+p.refill(now-b.seenAt+drifted) < float64(p.Cap)
}

// ended takes the call seq off the bucket, if it is under way.
func (b *Bucket) ended(seq int64) (Call, bool) {
	if !b.calling() || seq != b.call.Seq {
		return Call{}, false
	}
	c := b.call
	b.call = Call{}
	return c, true
}

// learn notes what a reply says about what is refused from now on, and reports until when no renewal makes sense. What
// comes for those who wait leaves the hold-off of the others as it was.
func (b *Bucket) learn(now time.Duration, c Call, r lua.Reply) (renewal time.Duration) {
	var d denial
	old := b.denied.Load()
	if old != nil {
		d = *old
	}
	short := r.Grant < c.Want
	switch {
	case short && r.Grant == 0:
		d.refused(b.Policy(), c.Min, r.Level, c.sent, now, micros(r.Retry))
	case c.forWaiters && (short || r.Level < 1) && d.granted(b.Policy(), c, r, now): // so the next need not ask to know
	case short:
		d.learn(b.Policy(), float64(r.Level), c.sent) // for the retry time; the hold-off denies
	case c.Want > 0 || c.resets > 0:
		d = denial{windows: d.windows}
	default:
		d.raise(b.Policy(), r.Level, c.sent)
	}
	renewal = d.holdOff
	if short && c.lends() && b.holdsOff(r) {
		renewal = c.sent + b.Policy().between(0.75, 1.25, b.Policy().holdOff(c.period))
		if w := d.windows; w != nil && w.edge {
			renewal = min(renewal, now+micros(r.TTLLeft)) // then another window begins, and nothing is used of it
		}
	}
	if !c.forWaiters {
		d.holdOff = renewal
	}
	d.seal()
	switch {
	case d == denial{}:
		b.denied.Store(nil)
	case old == nil || d != *old:
		kept := d // so that only what is kept is allocated
		b.denied.Store(&kept)
	}
	return renewal
}

// holdsOff reports whether everything is denied for a while after a short grant. As a rule what is left is for others, or, where
// nothing was granted, for cheaper requests. A sliding window that has something left is asked for it: as it fills the grants get
// smaller and more frequent, down to one token at a time, and nobody is refused before it is full.
func (b *Bucket) holdsOff(r lua.Reply) bool {
	return r.Level < 1 || r.Grant > 0 && b.Policy().Window == 0
}

// acceptLease adds a grant to the pot. The order matters: what ended while the call was under way must not live again
// with the new deadline (it was sent as hold, and others may have its room by now).
func (b *Bucket) acceptLease(now time.Duration, c Call, r lua.Reply) {
	if !c.lends() {
		r.Grant = 0
	}
	b.ack = c.Seq
	b.ledger.toReturn -= c.Ret
	b.ledger.returned += c.Ret
	if c.resets == 0 {
		b.ledger.refundAnswered(c.Refund, r)
	}
	if int64(now) >= b.deadline.Load() {
		b.burn()
	}
	b.pot.Add(r.Grant)
	b.deadline.Store(int64(c.sent + life(min(c.ttl, micros(r.TTLLeft))))) // from the sending on: Redis counts from later

	if w := b.windows(); w != nil {
		w.edge = b.Policy().Window == 0 && r.TTLLeft < c.TTL
	}
	b.outUntil = now + c.ttl
	if c.Hold+r.Grant == 0 {
		b.outUntil = 0
	}
	if c.Want > 0 {
		b.lastGrant = r.Grant
	}
	b.low.Store(b.size(c.trip).low)
	b.usedAt, b.usedSpent = now, b.spent()
}

// endReset tells those whose resets a call carried out. One that Redis did not carry out, for its deadline lay too
// far ahead on a clock that was set back, is made once more: this reply has told what the clock is.
func (b *Bucket) endReset(now time.Duration, c Call, r lua.Reply, again bool) {
	if c.resets == 0 {
		return
	}
	v := Verdict{Outcome: Admitted, Left: b.remaining(b.live(now))}
	if r.Flags&lua.Unapplied != 0 && c.settles == nil { // of a log it is the settling that came to nothing
		if !again {
			b.again = true
			return
		}
		v.Outcome = Failed
	}
	for _, w := range b.resets[:c.resets] {
		w.C <- v
	}
	b.resets = b.resets[c.resets:]
}

// life is how long a process may use a lease that Redis keeps for ttl.
func life(ttl time.Duration) time.Duration { return time.Duration(float64(ttl) * (1 - drift)) }

// acceptDirect hands a direct grant to those it was asked for. What nobody takes any more goes back: no lease covers it,
// so it never enters the pot.
func (b *Bucket) handOut(now time.Duration, grant int64) {
	rest := grant // when all have theirs
	for w := range b.queue() {
		if w.asked && w.cost <= rest {
			rest -= w.cost
		}
	}
	for w := range b.queue() {
		if w.asked && w.cost <= grant {
			w.Came = min(w.more, rest)
			rest -= w.Came
			grant -= w.cost + w.Came
			b.waiters.end(w, b.admits(b.remaining(0)))
		}
	}
	if grant > 0 {
		b.needLease()
		b.giveBackStamped(grant, b.StampOf())
	}
}

// Late ends the call seq, which reached the node after its deadline: nothing was done, and the node's clock is known
// better now. The call is made once more; the second time it has failed.
func (b *Bucket) Late(now time.Duration, seq int64) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	late := b.pending != nil && b.again
	c, ok := b.ended(seq)
	if !ok {
		return Effect{}
	}
	if late && c.Direct { // its time was too short, and nothing is wrong with the node
		b.again = false
		b.askFrom(now)
		b.end(now, Verdict{Outcome: Failed})
		return b.next(now)
	}
	if late {
		return b.fail(now, c)
	}
	b.again = true
	b.unanswered(c)
	if c.returning {
		b.duty = returning
	}
	return b.send()
}

// Poisoned ends the call seq, which was refused for its bucket alone: another program has written to it, it is damaged, or what
// the call says can never be accepted. It is Fail, but that what was to be settled is given up the third time in a row, for every
// later call would carry it, and fail too; and at once by a retired bucket: there is nowhere to go, and who closes a process would
// wait for nothing until the lease ends. Tokens are burnt, so nothing is minted; of debt it reports what is forgiven. Those in line
// look again once there is nothing left to settle: what they ask for may well be granted.
func (b *Bucket) Poisoned(now time.Duration, seq int64) (e Effect, forgiven int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.ended(seq)
	if !ok {
		return Effect{}, 0
	}
	b.unanswered(c)
	carried := c.resets == 0 && c.Ret+c.Refund+c.settledNow+c.Debt > 0
	if c.Refund = 0; b.leaseState != nil && (b.retired || b.failures+1 >= retries) {
		b.account(now)
		forgiven = b.giveUp()
		b.ledger.burnt += b.ledger.toReturn
		b.ledger.toReturn = 0
		if b.retired {
			b.burn()
			b.deadline.Store(0)
		}
		if b.live(now) == 0 {
			b.outUntil = 0
		}
	}
	if !carried || b.retired || b.owing()+b.ledger.toRefund+b.ledger.toReturn > 0 {
		return b.fail(now, c), forgiven
	}
	b.failWith(now, c, Gone)
	b.pause(now)
	return b.next(now), forgiven
}

// Fail ends the call seq without an answer: it timed out or broke. What it asked for may have been done; the next call's
// statements settle that. Everybody in line gets Failed, and the key asks no more for a while.
func (b *Bucket) Fail(now time.Duration, seq int64) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.ended(seq)
	if !ok {
		return Effect{}
	}
	return b.fail(now, c)
}

// retries is how many failed calls in a row are followed by another that no request asks for: as many as open a breaker.
// Then it has opened, or the node answers others and this key can wait until somebody wants it.
const retries = 3

// Retry has a call that just failed made again as soon as the key asks again at all, which is within a second. Leases make
// calls rare: if each waited for the next request, three rare requests would have to find out that Redis is gone, and a
// lease could end before anybody knew that it was not renewed.
func (b *Bucket) Retry(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if 0 < b.failures && b.failures < retries && !b.retired && b.probe != probeNow {
		b.probe = probeLater
	}
	return b.next(now)
}

func (b *Bucket) fail(now time.Duration, c Call) Effect {
	b.failWith(now, c, Failed)
	return b.next(now)
}

// failWith is fail, with an outcome for those in line.
func (b *Bucket) failWith(now time.Duration, c Call, o Outcome) {
	b.unanswered(c)
	b.forgive()
	b.again = false
	b.failures = min(b.failures+1, 20)
	longest := min(c.period<<b.failures, maxBackoff)
	if c.first {
		longest = min(longest, connecting*c.Policy.Timeout)
	}
	b.pause(now + b.Policy().between(0.5, 1, max(longest, minIdle)))
	v := Verdict{Outcome: o, Left: b.remaining(b.live(now))}
	b.end(now, v)
	v.Outcome = Failed
	b.endResets(v)
}

// pause asks no more until a time.
func (b *Bucket) pause(until time.Duration) {
	b.needLease()
	b.backOff = until
	b.renewAt.Store(int64(until))
}

func (b *Bucket) endResets(v Verdict) {
	if b.pending == nil {
		return
	}
	for _, w := range b.resets {
		w.C <- v
	}
	b.resets = nil
	b.conclude()
}

// lose gives up the refund of a call: it counts at most once, so it is not sent again.
func (b *Bucket) unanswered(c Call) {
	if c.Ret+c.Refund+c.settledNow > 0 || c.resets > 0 { // it may have been executed
		b.certainty = doubtful
	}
	if c.resets == 0 && c.Refund > 0 { // what settles a log states a cost: that is repeated
		b.ledger.toRefund -= c.Refund
		b.ledger.burnt += c.Refund
	}
}

// forgive drops debt and refund of a retired bucket that could not be sent with its return: one try is what they are
// worth, or an outage would keep every evicted key, and a poisoned key for ever.
func (b *Bucket) forgive() {
	if b.retired && b.leaseState != nil {
		b.giveUp()
	}
}

// giveUp drops debt and refund: the one is forgiven, the other burnt. It reports the debt.
func (b *Bucket) giveUp() (forgiven int64) {
	forgiven = b.owing()
	b.debt = debt{}
	if b.Policy().FailMode == FailOpen {
		b.ledger.booked += b.ledger.unbooked.Swap(0)
	}
	if w := b.windows(); w != nil {
		w.frozen, w.frozenCertain = 0, 0
		w.forget()
	}
	b.ledger.burnt += b.ledger.toRefund
	b.ledger.toRefund = 0
	return forgiven
}
