package local

import "time"

// debt is what was admitted without Redis and is to be charged when it answers again.
//
// A bucket that nobody could reach was full meanwhile and threw its refill away: that pays for what was admitted without
// it. A bucket that others could reach threw nothing away, and everything is owed. The bucket counts what it threw away
// (its overflow); the script charges max(owed, admitted − (overflow − seen)/fleet).
type debt struct {
	admitted int64 // alone, since seen was read
	sure     int64 // part of it that is owed whatever was thrown away: costs that turned out higher
	seen     int64 // the bucket's overflow, read when nothing was owed
	epoch    int64 // of the bucket in which it was read; 0 never
}

// Alone decides over n tokens, 1 ≤ n ≤ Cap, by the fail mode, because Redis does not answer; fleet is the number of
// processes that share the limit. A lease is spent first, in every mode.
func (b *Bucket) Alone(now time.Duration, n, fleet int64) Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return Verdict{Outcome: Gone}
	}
	if b.line.n == 0 {
		if pot, ok := b.take(now, n); ok {
			return Verdict{Outcome: Admitted, Left: b.remaining(pot)}
		}
	}
	if b.policy.FailMode == FailClosed {
		b.ledger.failed += n
		return Verdict{Outcome: Failed, Left: b.live(now)}
	}
	// The share is debited with what was admitted from Redis' tokens before it decides: an outage refills nothing.
	b.share.tell(b.policy, now, fleet)
	b.account(now)
	v := Verdict{Outcome: Opened}
	if b.policy.FailMode == FailOpen {
		b.share.debit(now, n)
		b.ledger.opened += n
	} else {
		ok, retry := b.share.take(now, n)
		if !ok {
			b.ledger.refused += n
			return Verdict{Outcome: ShareSpent, Retry: retry, Left: min(b.share.left(now), b.policy.Cap)}
		}
		v.Outcome = Shared
		b.ledger.shared += n
	}
	b.debt.admitted += n
	v.Left = min(b.share.left(now), b.policy.Cap)
	return v
}

// Probe asks for a call that finds out whether Redis answers again: nobody waits for it, and it settles the debt.
func (b *Bucket) Probe() Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return Effect{}
	}
	b.probe = true
	return b.send()
}

// Drop takes the bucket out of the queue because its node's breaker lets nothing through: those in line are Failed, and
// the key asks again after a part of its period, so that not all come at once when the breaker closes.
func (b *Bucket) Drop(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.queued {
		return Effect{}
	}
	b.queued, b.probe = false, false
	b.forgive()
	pause := max(b.policy.period(0), minIdle)
	if b.retired {
		pause = maxBackoff // nobody waits for it, and there may be thousands
	}
	b.backOff = now + b.policy.between(0.5, 1, pause)
	b.askAt.Store(int64(b.backOff))
	v := Verdict{Outcome: Failed}
	b.end(now, v)
	b.endResets(v)
	return b.next(now)
}
