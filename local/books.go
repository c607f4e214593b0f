package local

import (
	"math"
	"time"
)

// nearPart: a key is near its limit while less than one in nearPart of its tokens is left. See
// Policy.NearLimit.
const nearPart = 5

// account brings fallback and demand up to date with what was admitted and asked for.
func (b *Bucket) account(now time.Duration) {
	mode := b.Policy().FailMode
	spent := b.spent()
	if spent == b.fallback.debited && now-b.demand.at < minInterval && mode != FailOpen {
		return // nothing is new, and what was asked for is sampled later
	}
	if b.hot.lease != nil && mode == FailOpen { // first, because it was earlier
		o := &b.hot.lease.outage
		at := min(now, time.Duration(o.bookAt.Load()))
		b.bookOpened(at, o.unbooked.Swap(0)) // deciders add to it without the mutex
		o.bookAt.Store(int64(now + bookDelay))
	}
	b.fallback.debit(now, spent-b.fallback.debited)
	if p := b.Policy(); p.NearLimit != nil && spent > b.fallback.debited && b.hot.lease.live(now)+b.hot.levelAt(now) < p.Cap/nearPart {
		p.NearLimit.Add(spent - b.fallback.debited)
	}
	b.fallback.debited = spent
	s := b.hot.lease.stats(mode)
	offered := spent + b.hot.refused.Load() + s.Fallback + s.Opened + s.Failed // what the fallback refused is in refused already
	b.demand.sample(now, offered, b.Policy().Cap, b.hot.denied.Load().scarce())
}

// bookOpened charges fallback and debt with tokens that fail-open admitted at a time.
func (b *Bucket) bookOpened(at time.Duration, opened int64) {
	if opened <= 0 {
		return
	}
	b.hot.lease.outage.booked += opened
	if b.hot.freezes() { // a window carries nothing over
		b.fallback.debit(at, opened)
	} else {
		b.fallback.owe(at, opened, b.Policy(), int64(b.hot.view.fleet))
	}
	b.owe(at, opened, 0)
}

// owe notes that n tokens were admitted at a time, and that no refill pays the part certain of
// them. It forgets at once what no bucket would still count if it had been charged at that time:
// FailOpen can admit that much.
func (b *Bucket) owe(at time.Duration, n, certain int64) {
	f := &b.needLease().outage
	if n == 0 {
		return
	}
	f.debt.admitted += n
	f.debt.certain += certain
	if b.hot.freezes() {
		p, w := b.Policy(), b.hot.denied.windows()
		b.hot.lease.forget(p, w.debts.drop(at-p.window()))
		b.hot.lease.forget(p, w.debts.add(at, n, certain, p.window()/piecesPerWindow))
		return
	}
	p := b.Policy()
	if f.debt.admitted <= p.Cap+p.maxDebt() { // it matters in any case
		return
	}
	if most := p.mostOwed(time.Second + max(at-b.hot.view.at, 0)/time.Duration(max(b.hot.view.fleet, 1))); f.debt.admitted > most {
		f.settled += f.debt.lower(f.debt.admitted-most, b.pending.reporting())
	}
}

// refund adds n tokens that were counted at a stamp to those that are to be refunded, or burns
// them.
func (b *Bucket) refund(n int64, s *Stamp) {
	l := &b.needLease().ledger
	if b.hot.denied.windows().refundAt(n, s, b.Policy().Call.Algorithm) {
		l.toRefund += n
	} else {
		l.burnt += n
	}
}

// setFleet says how many processes share the limit, ≥ 1.
func (b *Bucket) setFleet(now time.Duration, fleet int64) {
	if n := int32(min(max(fleet, 1), math.MaxInt32)); b.hot.view.fleet != n {
		if b.hot.view.fleet != 0 {
			b.account(now) // by the fallback that there was
		}
		b.fallback.resize(b.Policy(), now, int64(n), b.hot.view.fleet == 0)
		if b.hot.view.fleet == 0 {
			if p := b.Policy(); p.Spent != nil { // what the key had used before it was evicted
				b.fallback.drain(now, p.Spent.of(b.ID()))
			}
		}
		b.hot.view.fleet = n
	}
}

// fold takes out of the counts what the bucket counted by the fail mode, or because the rule is
// Blocked, if p has another one, and reports it.
func (b *Bucket) fold(now time.Duration, p *Policy) (folded Stats) {
	old := b.Policy()
	if (p.Rule == Blocked) != (old.Rule == Blocked) { // all that was refused, but by the fallback
		rest := b.hot.lease.stats(old.FailMode).FallbackSpent
		n := b.hot.refused.Swap(rest) - rest
		b.demand.offers -= n
		if old.Rule == Blocked {
			folded.Blocked = n
		} else {
			folded.Refused = n
		}
	}
	if p.FailMode == old.FailMode || b.hot.lease == nil {
		return folded
	}
	o := &b.hot.lease.outage
	n := o.unbooked.Swap(0) // deciders add to it without the mutex
	if old.FailMode == FailOpen {
		b.bookOpened(min(now, time.Duration(o.bookAt.Load())), n)
		n = 0
	}
	s := o.stats(old.FailMode, n)
	s.Refused = s.FallbackSpent
	b.hot.refused.Add(-s.Refused)
	b.demand.offers -= s.Fallback + s.FallbackSpent + s.Opened + s.Failed
	o.booked = 0
	folded.Add(s)
	return folded
}

// Stats reports the counts of the bucket.
func (b *Bucket) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.Policy()
	s := b.hot.lease.stats(p.FailMode)
	s.Granted, s.Refused = b.granted, b.hot.refused.Load()
	if p.Rule == Blocked { // the fallback refused what it did before the rule
		s.Refused, s.Blocked = s.FallbackSpent, s.Refused-s.FallbackSpent
	}
	s.Spent = s.Granted - s.Returned - s.Burnt - s.Held
	return s
}

// Generation tells [Bucket.Return] whether tokens may go back into the pot. Read it before they are
// taken.
func (b *Bucket) Generation() int64 {
	if b.hot.ready.Load() {
		return b.hot.lease.generation()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hot.lease.generation()
}

// Return gives back n tokens that were admitted and then not used. They go into the pot only if no
// call has left since gen was read: such a call reported them as spent, and others may be using
// their place. Otherwise they go back to Redis, within 50 ms and once: what is lost on the way is
// burnt. s is when they were counted; see [Waiter].
//
// It reports false, and does nothing, if this bucket is closed: look the key up again and give them
// back there, as FromRedis, in the generation that it has now.
func (b *Bucket) Return(now time.Duration, n int64, from Source, gen int64, s *Stamp) (Effect, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hot.life == closed {
		return Effect{}, from == FromFallback // its debt was charged or forgiven
	}
	l := b.needLease()
	switch {
	case from == FromFallback:
		b.account(now)
		// A call under way may have charged its part of the debt already. That part stays.
		if d := &l.outage.debt; b.hot.freezes() {
			d.admitted -= b.hot.denied.windows().debts.lower(n)
		} else {
			d.lower(n, b.pending.reporting())
		}
	case !l.pot.sameIdentity(gen): // a twin of this process may give the same tokens back: see Expire
		l.ledger.burnt += n
	case b.Policy().Unset: // nothing was taken by it, so there is nobody whom they could be given back to
		l.ledger.burnt += n
	case from == FromLease && gen == l.generation() && l.lives(now):
		l.pot.tokens.Add(n)
	default:
		b.refund(n, s)
		return b.next(now), true
	}
	return Effect{}, true
}

// Charge charges n more tokens for a request that turned out to cost more. It takes what this
// process has leased, and the rest becomes a debt: a lease that went on admitting beside a debt
// that Redis forgives would be worth many times its tokens. The bucket may go below zero. It
// charges no more than a full bucket has above the largest debt.
//
// It reports what it took of the lease, which counts as spent, and what it forgives of n. Redis
// reports what the bucket itself forgives, because it was not full. It reports ok false, and
// charges nothing, if this bucket is closed: look the key up again.
func (b *Bucket) Charge(now time.Duration, n int64) (e Effect, taken, forgiven int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hot.life == closed {
		return Effect{}, 0, 0, false
	}
	if b.Policy().Unset {
		return Effect{}, 0, 0, true // nothing was taken by it, so nothing can have cost more
	}
	charged := min(n, b.Policy().Cap+b.Policy().maxDebt())
	taken = b.needLease().pot.takeUpTo(now, charged)
	b.owe(now, charged-taken, charged-taken)
	b.hot.charged(now, charged-taken)
	return b.next(now), taken, n - charged, true
}

// Peek reports what is known here: the tokens held, and the level in Redis by the last reply and
// the refill since.
func (b *Bucket) Peek(now time.Duration) (held, level int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hot.lease.live(now), b.hot.levelAt(now)
}

// LastUse returns when Redis was last asked by the bucket's policy, or when its lease ends if that
// is later. It reports false if it was never asked.
func (b *Bucket) LastUse(now time.Duration) (at time.Duration, asked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at = b.hot.view.at
	if b.hot.queued || b.pending.calling() {
		at = now
	}
	if b.hot.lease.out(now) {
		at = max(at, b.hot.lease.outUntil)
	}
	return at, at > 0
}
