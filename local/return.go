package local

import "time"

// Source says where admitted tokens came from, and so where they go when they are given back.
type Source uint8

// The sources.
const (
	FromLease Source = iota // the pot
	FromRedis               // a direct take, or a lease that a reply brought
	FromShare               // nowhere: Redis did not answer
)

// Generation tells [Bucket.Return] whether tokens may go back into the pot. Read it before they are taken.
func (b *Bucket) Generation() int64 {
	if b.ready.Load() {
		return b.lease.generation()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lease.generation()
}

// Return gives n tokens back that were admitted and then not used. They go into the pot only if no call has left
// since gen was read: such a call reported them as spent, and others may be using their place. Otherwise they go back
// to Redis, within 50 ms and once: what is lost on the way is burnt. s is when they were counted; see [Verdict].
//
// It reports false, and does nothing, if this bucket is closed: look the key up again and give them back there, as
// FromRedis, in the generation that it has now.
func (b *Bucket) Return(now time.Duration, n int64, from Source, gen int64, s *Stamp) (Effect, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == closed {
		return Effect{}, from == FromShare // its debt was charged or forgiven
	}
	l := b.needLease()
	switch {
	case from == FromShare:
		b.account(now)
		// A call under way may have charged its part of the debt already. That part stays.
		if d := &l.outage.debt; b.freezes() {
			d.admitted -= b.denied.windows().debts.lower(n)
		} else {
			d.lower(n, b.pending.reporting())
		}
	case !l.pot.sameEra(gen): // a twin of this process may give the same tokens back: see Expire
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

// Charge charges n more tokens for a request that turned out to cost more. It takes what this process has leased, and
// the rest becomes a debt: a lease that went on admitting beside a debt that Redis forgives would be worth many times its
// tokens. The bucket may go below zero. It charges no more than a full bucket has above the largest debt.
//
// It reports what it took of the lease, which counts as spent, and what it forgives of n. What the bucket itself
// forgives, because it was not full, Redis tells. It reports ok false, and charges nothing, if this bucket is closed:
// look the key up again.
func (b *Bucket) Charge(now time.Duration, n int64) (e Effect, taken, forgiven int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == closed {
		return Effect{}, 0, 0, false
	}
	if b.Policy().Unset {
		return Effect{}, 0, 0, true // nothing was taken by it, so nothing can have cost more
	}
	charged := min(n, b.Policy().Cap+b.Policy().maxDebt())
	taken = b.needLease().pot.takeUpTo(now, charged)
	b.owe(now, charged-taken, charged-taken)
	if d := b.denied.copy(); taken < charged && d != (denial{}) { // what was refused before did not know of it
		d.charge(b.Policy(), now, charged-taken)
		b.denied.put(&d)
	}
	return b.next(now), taken, n - charged, true
}

// Charged reports the tokens of charges that Redis is not known to have heard of.
func (b *Bucket) Charged() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lease == nil {
		return 0
	}
	return b.lease.outage.debt.certain
}
