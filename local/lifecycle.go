package local

import (
	"time"
)

// keptPeriods is how many periods of demand a lease may hold that is used too slowly to be renewed.
// If it holds more, it goes back instead of being prolonged, because it would lie here for longer
// than a lease should.
const keptPeriods = 4

// Check sees to what is due though no decision asks for it: a lease that lies idle goes back, and
// so does what is still to be returned or refunded.
func (b *Bucket) Check(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	busy := b.hot.life == closed || b.hot.queued || b.pending.calling()
	if b.hot.view.probe == probeLater && !b.hot.lease.backsOff(now) && !busy {
		b.hot.view.probe = probeNow
		return b.send()
	}
	if busy || b.hot.lease == nil || b.owesNothing(now) {
		return b.next(now)
	}
	if b.hot.retired() || b.hot.lease.hasNews() {
		return b.sendAfterBackOff(now)
	}
	l := b.hot.lease
	if spent := b.spent(); spent != l.usedSpent {
		l.used(now, spent)
	}
	b.account(now)
	period := b.hot.leasing.lasting(b.size(now, 0).period)
	need := b.demand.over(period)
	giveBack := now-l.usedAt >= idle(period) || need < 1
	if held := l.live(now); held > 0 && now >= b.hot.lease.extendAt(b.Policy(), b.hot.denied.windows(), b.hot.leasing.trip()) {
		// It is used too slowly to be renewed. Keep what the next periods need, else give it back.
		// With a slow limit it goes back at once if it was not used lately: callers that wait for
		// it were told to ask about now.
		giveBack = giveBack || float64(held) > keptPeriods*need || b.Policy().slow() && now-l.usedAt >= period/2
		b.hot.upkeep = extending
	}
	if giveBack {
		b.hot.upkeep = returning
	} else if b.hot.upkeep == returning {
		b.hot.upkeep = nothing
	}
	return b.next(now)
}

// retire begins the end of a bucket that its cache evicted: whatever it holds goes back. It still
// answers those who have it in hand. When it owes nothing any more, an Effect says Done.
func (b *Bucket) retire(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hot.life = max(b.hot.life, retired)
	b.hot.view.probe = probeNot
	return b.next(now)
}

// revive takes retire back: the key was asked for again before the end.
func (b *Bucket) revive() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hot.life == retired {
		b.hot.life = inUse
	}
}

// finish closes a retired bucket that owes nothing, and reports whether it is closed. A closed
// bucket answers Outdated. A state that was forgotten earlier would lose what it returns: the first
// call of the next state would overtake the return.
func (b *Bucket) finish(now time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hot.life == retired && b.owesNothing(now) {
		b.close(now)
	}
	return b.hot.life == closed
}

// Burn closes the bucket whatever it holds. Tokens end unspent and are never minted. Callers that
// wait get Unavailable.
func (b *Bucket) Burn(now time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close(now)
	b.pending.cancel() // its reply, if it comes, is ignored
	b.pending.stopRepeating()
	// Not Outdated: looked up again, they would push out others who wait, and so on for ever.
	b.pending.failAll(&b.hot, now, because(Unavailable))
	b.deliver()
}

// close makes the bucket answer Outdated from now on. What it still holds is burnt.
func (b *Bucket) close(now time.Duration) {
	if b.hot.life != closed {
		b.fallback.keep(now, b.Policy(), b.ID())
	}
	b.hot.life = closed
	b.hot.ready.Store(false)
	w := b.hot.denied.windows()
	b.hot.denied.Store(nil) // or it would go on to refuse
	if b.hot.lease != nil {
		b.hot.lease.burn()
		b.hot.lease.burnReturns()
		w.forgetRefunds()
	}
}

// Expire drops the lease, and burns what was to go back, because the clock that the lease's
// deadline is measured by stood still while the machine was suspended. The process goes on under
// another lease id, because it may be a copy of one that runs on. Such a copy gives the same tokens
// back, so this one must not.
func (b *Bucket) Expire(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.needLease().expire() // it knows what is of the old id
	b.hot.denied.windows().forgetRefunds()
	b.hot.view.doubt() // nobody here knows how long the clock stood still
	c, ok := b.pending.cancel()
	if !ok {
		return b.next(now)
	}
	c.Refund = 0 // burnt
	b.fail(now, c, Unavailable)
	return b.next(now)
}

// SetPolicy has the bucket go on under another policy of the same Number. It reports what the
// bucket had counted by fail mode, or because the rule is Blocked, if p has another mode or rule:
// the owner keeps these counts from now on.
//
// Nothing is minted and nothing is taken away. What came until now came by the old numbers, here,
// in the fallback and in Redis, and is clamped if the burst is smaller. What is known to be denied
// is forgotten, so that a raised limit shows at once. Callers that wait, and that p will never
// admit or that need not ask, get Outdated: they look the key up again.
//
// Redis counts by the old numbers until the next call of the key brings others. If the limit is
// lowered, what is leased under the larger one is not spent any more: it goes back, by a call that
// brings them.
//
// Under a rule by which no limit decides the bucket keeps its numbers for as long as it lives: what
// comes back of a reservation, a call under way, a lease or a debt was taken by them.
//
// It does nothing, and reports false, if the bucket does not go by the policy has any more. nil is
// any policy.
func (b *Bucket) SetPolicy(now time.Duration, has, p *Policy) (folded Stats, e Effect, set bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.Policy()
	if has != nil && has != old {
		return Stats{}, Effect{}, false
	}
	if p.Rule != ByLimit && !old.Unset { // what comes back goes by the numbers that it was taken by
		p = old.WithRule(p.Rule)
	}
	if b.hot.life == closed {
		b.hot.policy.Store(p)
		return Stats{}, Effect{}, true
	}
	b.account(now)
	folded = b.fold(now, p)
	b.hot.changeNumbers(now, old, p, b.pending.calling())
	b.hot.policy.Store(p)
	if p.Cap != old.Cap || p.Tokens != old.Tokens || p.Per != old.Per {
		b.hot.view.doubt()
	}
	if b.hot.view.fleet != 0 && p.Rule == ByLimit {
		b.fallback.resize(p, now, int64(b.hot.view.fleet), false)
	}
	if b.hot.view.epoch == 0 && b.hot.lease == nil { // never asked for: an absent bucket is full
		b.hot.view.level.Store(p.Cap)
	}
	if !p.sameLimits(old) || p.Rule != old.Rule || p.FailMode != old.FailMode || !p.sameEnds(old) {
		b.hot.denied.clear()
	}
	if !b.hot.queued && !b.pending.calling() {
		b.hot.lease.renewFrom(max(now, b.hot.lease.backOffEnd()))
	}
	for w := range b.pending.waiting() {
		if p.Rule != ByLimit || w.cost > p.Cap {
			b.pending.decide(w, because(Outdated))
		}
	}
	b.deliver()
	return folded, b.next(now), true
}

// Inherit makes b the successor of a closed bucket of its key, before something comes back that was
// taken there. p was the policy of that bucket. If nobody has set b's numbers, it goes by those of
// p.
func (b *Bucket) Inherit(p *Policy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if old := b.Policy(); old.Unset && !p.Unset {
		b.hot.policy.Store(p.WithRule(old.Rule))
	}
}
