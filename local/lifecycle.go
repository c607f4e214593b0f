package local

import "time"

// next says when the bucket wants to be looked at again.
func (b *Bucket) next(now time.Duration) Effect {
	switch {
	case b.queued || b.calling():
		return Effect{} // the end of the call will tell
	case b.closed:
		return Effect{}
	case b.probe == probeLater:
		return Effect{Check: b.backOff}
	case b.owesNothing(now):
		return Effect{Done: b.retired}
	case b.waiting() > 0:
		return Effect{Check: now + minIdle} // their time is over and they are about to leave
	case b.pending != nil: // a Reset waits
		return b.send()
	case b.retired || b.duty != nothing:
		return b.sendFrom(now)
	case b.ledger.toRefund > 0 || b.debt.certain > 0:
		return Effect{Check: max(now+refundDelay, b.backOff)}
	case b.ledger.toReturn > 0:
		return Effect{Check: max(now+minIdle, b.backOff)}
	}
	check := b.usedAt + idle(b.Policy().period(0))
	if b.pot.Load() > 0 {
		check = min(check, b.ending())
	}
	return Effect{Check: max(check, now+minIdle)}
}

// sendFrom sends as soon as the back-off allows.
func (b *Bucket) sendFrom(now time.Duration) Effect {
	if now >= b.backOff {
		return b.send()
	}
	return Effect{Check: b.backOff}
}

// ending is when a lease that still holds tokens must be seen to: what ends in the pot is burnt. At the edge of a fixed window
// it ends anyway: without that, each process made a call every 10 ms of the last 250 ms of each window.
func (b *Bucket) ending() time.Duration {
	if w := b.windows(); w != nil && w.edge {
		return never
	}
	return time.Duration(b.deadline.Load()) - b.Policy().ttl(b.Policy().period(0))/4
}

// settled reports that nothing is owed, in either direction; but for a debt, which waits for the next call (what is
// refilled meanwhile pays it), unless there will be none.
func (b *Bucket) owesNothing(now time.Duration) bool {
	if b.queued || b.pending != nil {
		return false
	}
	return b.leaseState == nil ||
		b.ledger.toRefund == 0 && b.debt.certain == 0 && now >= b.outUntil && (!b.retired || b.owing() == 0)
}

// Check looks whether something is due that no decision asks for: a lease that lies idle goes back, and so does what is
// still to be returned or refunded.
func (b *Bucket) Check(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.probe == probeLater && now >= b.backOff && !b.closed && !b.queued && !b.calling() {
		b.probe = probeNow
		return b.send()
	}
	if b.mustReport() && (b.leaseState == nil || now >= b.backOff) {
		return b.send()
	}
	if b.closed || b.queued || b.calling() || b.owesNothing(now) || b.leaseState == nil {
		return b.next(now)
	}
	if b.retired || b.hasNews() {
		return b.sendFrom(now)
	}
	if spent := b.spent(); spent != b.usedSpent {
		b.usedAt, b.usedSpent = now, spent
	}
	b.account(now)
	period := b.Policy().period(0)
	need := b.demand.over(period)
	home := now-b.usedAt >= idle(period) || need < 1
	if now >= b.ending() && b.live(now) > 0 {
		// Used too slowly to be renewed: keep what the next periods need, else give it back.
		home = home || float64(b.live(now)) > 4*need
		b.duty = extending
	}
	if home {
		b.duty = returning
	} else if b.duty == returning {
		b.duty = nothing
	}
	return b.next(now)
}

// Expire lets go of everything that Redis knows of this bucket: the clock that the lease's deadline is measured by stood
// still (a suspended machine), and the process goes on under another lease id, for it may be a copy of one that runs on. What
// was to go back is burnt: if there is a twin, it gives it back too.
func (b *Bucket) Expire(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.needLease() // which knows what is of the old id
	b.deadline.Store(0)
	b.burn()
	b.burnReturns()
	b.ack, b.outUntil = unknown, 0
	b.certainty = doubtful // for how long it stood still nobody tells here
	b.generation.Store((b.generation.Load()>>eraBits + 1) << eraBits)
	if !b.calling() {
		return b.next(now)
	}
	c := b.call
	b.call = Call{}
	c.Refund = 0 // burnt
	return b.fail(now, c)
}

// burnReturns gives up what was to go back.
func (b *Bucket) burnReturns() {
	b.windows().forget()
	b.ledger.burnt += b.ledger.toReturn + b.ledger.toRefund
	b.ledger.toReturn, b.ledger.toRefund = 0, 0
}

// Retire begins the end of a bucket that its cache evicted: whatever it holds goes back. It still answers those who have
// it in hand. When it owes nothing any more, an Effect says Done.
func (b *Bucket) Retire(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retired, b.probe = true, probeNot
	return b.next(now)
}

// Revive takes Retire back: the key was asked for again before the end.
func (b *Bucket) Revive() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retired = false
}

// Close closes a retired bucket that is settled, and reports whether it did. A closed bucket answers Gone. A state that
// were forgotten earlier would lose what it returns: the first call of the next state would overtake the return.
func (b *Bucket) Close(now time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.retired && !b.closed && b.owesNothing(now) {
		b.close()
	}
	return b.closed
}

// Burn closes the bucket whatever it holds: tokens end unspent, and are never minted. Those in line are Failed.
func (b *Bucket) Burn(now time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close()
	if b.pending != nil {
		b.call, b.again = Call{}, false // its reply, if it comes, is ignored
	}
	// Not Gone: looked up again, they would push out others who wait, and so on for ever.
	failed := Verdict{Outcome: Failed}
	b.end(now, failed)
	b.endResets(failed)
	b.conclude()
}

// Awaited reports whether somebody waits for what Redis answers.
func (b *Bucket) Awaited() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pending != nil && (b.waiters.n > 0 || len(b.resets) > 0)
}

// close makes the bucket answer Gone from now on. What it still holds is burnt.
func (b *Bucket) close() {
	b.closed = true
	b.ready.Store(false)
	w := b.windows()
	b.denied.Store(nil) // or it would go on to refuse
	if b.leaseState != nil {
		b.burn()
		b.burnReturns()
		w.forget()
	}
}

// Denied reports whether a request for one token is known to be refused now, and for how long. It takes no lock.
func (b *Bucket) Denied(now time.Duration) (retry time.Duration, denied bool) {
	retry, denied = b.denied.Load().refuses(now, 1)
	return retry, denied && (!b.ready.Load() || b.live(now) == 0)
}

// Look reports what is known here: the tokens held, and the level in Redis by the last reply and the refill since.
func (b *Bucket) Look(now time.Duration) (held, level int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.live(now), b.levelAt(now)
}

// levelAt is the level in Redis by the last reply and the refill since.
func (b *Bucket) levelAt(now time.Duration) int64 {
	p := b.Policy()
	if w := b.windows(); w != nil {
		level := b.level.Load()
		if now >= time.Duration(w.clearAt.Load()) {
			level = p.Cap
		}
		return min(level, p.Cap)
	}
	refilled := float64(b.level.Load()) + p.refill(now-b.seenAt)
	return int64(min(refilled, float64(p.Cap)))
}
