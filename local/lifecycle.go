package local

import "time"

// next says when the bucket wants to be looked at again.
func (b *Bucket) next(now time.Duration) Effect {
	l := b.lease
	switch {
	case b.queued || b.pending.calling() || b.life == closed:
		return Effect{} // the end of the call will tell
	case b.view.probe == probeLater:
		return Effect{Check: l.backOffEnd()}
	case b.owesNothing(now):
		return Effect{Done: b.retired()}
	case b.pending.count() > 0:
		return Effect{Check: now + minIdle} // their time is over and they are about to leave
	case b.pending != nil: // a Reset waits
		return b.send()
	case b.retired() || b.upkeep != nothing:
		return b.sendAfterBackOff(now)
	case l.ledger.toRefund > 0 || l.outage.debt.certain > 0:
		return Effect{Check: max(now+refundDelay, l.backOff)}
	case l.ledger.toReturn > 0:
		return Effect{Check: max(now+minIdle, l.backOff)}
	}
	period := b.lastingPeriod(now)
	check := l.usedAt + idle(period)
	if once := l.usedAt + period; b.Policy().slow() && now < once { // so it is known to a period when it was last used
		check = once
	}
	if l.pot.tokens.Load() > 0 {
		check = min(check, b.lease.extendAt(b.Policy(), b.denied.windows(), b.leasing.trip()))
	}
	return Effect{Check: max(check, now+minIdle)}
}

// sendAfterBackOff sends as soon as the back-off allows.
func (b *Bucket) sendAfterBackOff(now time.Duration) Effect {
	if !b.lease.backsOff(now) {
		return b.send()
	}
	return Effect{Check: b.lease.backOffEnd()}
}

// owesNothing reports that nothing is owed in either direction. A debt may be owed: it waits for the next call, because
// what is refilled meanwhile pays it. But a retired bucket has no next call.
func (b *Bucket) owesNothing(now time.Duration) bool {
	l := b.lease
	switch {
	case b.queued || b.pending != nil:
		return false
	case l == nil:
		return true
	case l.ledger.toRefund > 0 || l.outage.debt.certain > 0 || l.out(now):
		return false
	}
	return b.life == inUse || b.owing() == 0
}

// Check sees to what is due though no decision asks for it: a lease that lies idle goes back, and so does what is still
// to be returned or refunded.
func (b *Bucket) Check(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	busy := b.life == closed || b.queued || b.pending.calling()
	if b.view.probe == probeLater && !b.lease.backsOff(now) && !busy {
		b.view.probe = probeNow
		return b.send()
	}
	if busy || b.lease == nil || b.owesNothing(now) {
		return b.next(now)
	}
	if b.retired() || b.lease.hasNews() {
		return b.sendAfterBackOff(now)
	}
	b.findDuty(now)
	return b.next(now)
}

// lastingPeriod is the period by which a lease that nobody renews is idle.
func (b *Bucket) lastingPeriod(now time.Duration) time.Duration {
	period := b.size(now, 0).period
	if far := b.leasing.trip(); far > 0 { // until more can be there
		period = max(period, farPeriod) + far
	}
	return period
}

// keptPeriods is how many periods of demand a lease may hold that is used too slowly to be renewed. If it holds
// more, it goes back instead of being prolonged, because it would lie here for longer than a lease should.
const keptPeriods = 4

// findDuty decides whether the lease is to go back, to be extended, or to stay as it is.
func (b *Bucket) findDuty(now time.Duration) {
	l := b.lease
	if spent := b.spent(); spent != l.usedSpent {
		l.used(now, spent)
	}
	b.account(now)
	period := b.lastingPeriod(now)
	need := b.demand.over(period)
	giveBack := now-l.usedAt >= idle(period) || need < 1
	if held := l.live(now); held > 0 && now >= b.lease.extendAt(b.Policy(), b.denied.windows(), b.leasing.trip()) {
		// It is used too slowly to be renewed. Keep what the next periods need, else give it back.
		// Of a slow limit it goes back at once if it was not used lately: who waits for it is told to ask about now.
		giveBack = giveBack || float64(held) > keptPeriods*need || b.Policy().slow() && now-l.usedAt >= period/2
		b.upkeep = extending
	}
	if giveBack {
		b.upkeep = returning
	} else if b.upkeep == returning {
		b.upkeep = nothing
	}
}

// retire begins the end of a bucket that its cache evicted: whatever it holds goes back. It still answers those who
// have it in hand. When it owes nothing any more, an Effect says Done.
func (b *Bucket) retire(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.life = max(b.life, retired)
	b.view.probe = probeNot
	return b.next(now)
}

// revive takes retire back: the key was asked for again before the end.
func (b *Bucket) revive() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == retired {
		b.life = inUse
	}
}

// finish closes a retired bucket that owes nothing, and reports whether it is closed. A closed bucket answers Outdated.
// A state that was forgotten earlier would lose what it returns: the first call of the next state would overtake the
// return.
func (b *Bucket) finish(now time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == retired && b.owesNothing(now) {
		b.close(now)
	}
	return b.life == closed
}

// Burn closes the bucket whatever it holds. Tokens end unspent and are never minted. Those who wait get Failed.
func (b *Bucket) Burn(now time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close(now)
	b.pending.cancel() // its reply, if it comes, is ignored
	b.pending.stopRepeating()
	// Not Outdated: looked up again, they would push out others who wait, and so on for ever.
	b.pending.failAll(&b.hot, now, Verdict{Outcome: Failed})
	b.deliver()
}

// close makes the bucket answer Outdated from now on. What it still holds is burnt.
func (b *Bucket) close(now time.Duration) {
	if b.life != closed {
		b.fallback.keep(now, b.Policy(), b.ID())
	}
	b.life = closed
	b.ready.Store(false)
	w := b.denied.windows()
	b.denied.Store(nil) // or it would go on to refuse
	if b.lease != nil {
		b.lease.burn()
		b.lease.burnReturns()
		w.forgetRefunds()
	}
}
