package local

import "time"

// debt is what was admitted without Redis and is to be charged when it answers again.
//
// A bucket that nobody could reach was full meanwhile and threw its refill away: that pays for what was admitted without
// it. A bucket that others could reach threw nothing away, and everything is owed. The bucket counts what it threw away
// (its overflow); the script charges max(owed, admitted − (overflow − seen)/fleet).
type debt struct {
	admitted int64 // alone, since seen was read
	certain  int64 // part of it that is owed whatever was thrown away: costs that turned out higher
}

// Alone decides over n tokens, 1 ≤ n ≤ Cap, by the fail mode, because Redis does not answer; fleet is the number of
// processes that share the limit. A lease is spent first, in every mode.
func (b *Bucket) Alone(now time.Duration, n, fleet int64) Verdict {
	if v, ok := b.AloneAtOnce(now, n); ok {
		b.CountAlone(n)
		return v
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || !b.decides(n) {
		return Verdict{Outcome: Gone}
	}
	if b.waiting() == 0 {
		if pot, ok := b.take(now, n); ok {
			return b.admits(b.remaining(pot))
		}
	}
	b.needLease()
	if b.Policy().FailMode == FailClosed {
		b.ledger.unbooked.Add(n)
		return Verdict{Outcome: Failed, Left: b.live(now)}
	}
	b.setFleet(now, fleet)
	if b.Policy().FailMode == FailOpen {
		b.ledger.unbooked.Add(n)
		b.account(now)
		return Verdict{Outcome: Opened, Left: b.remaining(b.live(now))}
	}
	// The share is debited with what was admitted from Redis' tokens before it decides: an outage refills nothing.
	b.account(now)
	ok, left, retry := b.share.take(now, n)
	if !ok {
		return b.spentShare(n, left, retry)
	}
	b.ledger.booked += n
	b.debt.admitted += n
	b.owe(now)
	return Verdict{Outcome: Shared, Left: b.remaining(b.live(now))}
}

// Foresee decides like Alone, but takes nothing where that would admit. What it refuses it counts.
func (b *Bucket) Foresee(now time.Duration, n, fleet int64) Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || !b.decides(n) {
		return Verdict{Outcome: Gone}
	}
	held := b.live(now)
	if b.waiting() == 0 && held >= n {
		return Verdict{Outcome: Admitted, Left: b.remaining(held)}
	}
	switch b.Policy().FailMode {
	case FailOpen:
		return Verdict{Outcome: Opened, Left: b.remaining(held)}
	case FailClosed:
		b.needLease()
		b.ledger.unbooked.Add(n)
		return Verdict{Outcome: Failed, Left: held}
	}
	b.setFleet(now, fleet)
	b.account(now)
	if b.share.tokens(now) >= float64(n) {
		return Verdict{Outcome: Shared, Left: b.remaining(held)}
	}
	left, retry := b.share.lacks(now, n)
	return b.spentShare(n, left, retry)
}

// spentShare counts and refuses a request of n tokens that the share does not have.
func (b *Bucket) spentShare(n, left int64, retry time.Duration) Verdict {
	b.needLease()
	b.refused.Add(n)
	b.ledger.unbooked.Add(n)
	return Verdict{Outcome: ShareSpent, Left: left, Retry: retry}
}

// AloneAtOnce is Alone for most of the decisions that need only to be counted: it takes no lock. It reports false when Alone
// is needed. The caller counts it afterwards, with [Bucket.CountAlone].
func (b *Bucket) AloneAtOnce(now time.Duration, n int64) (Verdict, bool) {
	p := b.Policy()
	mode := p.FailMode
	if mode == FailLocal || !b.ready.Load() || mode == FailOpen && int64(now) >= b.bookAt.Load() {
		return Verdict{}, false
	}
	held := b.live(now)
	if held >= n { // a lease is spent first
		return Verdict{}, false
	}
	if mode == FailClosed {
		return Verdict{Outcome: Failed, Left: held}, true
	}
	return Verdict{Outcome: Opened, Left: b.remaining(held)}, true
}

// CountAlone counts n tokens that AloneAtOnce decided over; see [Bucket.CountRefused] for why it is a step of its own.
func (b *Bucket) CountAlone(n int64) { b.ledger.unbooked.Add(n) }

// probe says whether a call is wanted that finds out if Redis answers: now, or when the back-off is over; or one that tells it of
// another limit, when the owner has its turn.
type probe uint8

const (
	probeNot probe = iota
	probeLater
	probeNow
	probeTell
)

// Probe asks for a call that finds out whether Redis answers again: nobody waits for it, and it settles the debt.
func (b *Bucket) Probe() Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return Effect{}
	}
	b.probe = probeNow
	return b.send()
}

// Drop takes the bucket out of the queue because its node's breaker lets nothing through: those in line are Failed, and
// the key asks again after a part of its period, so that not all come at once when the breaker closes. A period may be a
// minute: no key waits longer than after a failure.
func (b *Bucket) Drop(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.queued {
		return Effect{}
	}
	b.queued, b.probe = false, probeNot
	if b.pending != nil {
		b.again = false
	}
	b.forgive()
	pause := b.Policy().breath(0)
	if b.retired {
		pause = maxBackoff // nobody waits for it, and there may be thousands
	}
	b.pause(now + b.Policy().between(0.5, 1, pause))
	v := Verdict{Outcome: Failed}
	b.end(now, v)
	b.endResets(v)
	return b.next(now)
}
