package local

import "time"

// Source says where admitted tokens came from, and so where they go when they are given back.
type Source uint8

// The sources.
const (
	FromLease Source = iota // the pot
	FromRedis               // a direct take, or a lease that a reply brought
	FromShare               // nowhere: the process was alone
)

// Generation is to be read before tokens are taken that may be given back.
func (b *Bucket) Generation() int64 {
	if b.ready.Load() {
		return b.generation.Load()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.leaseState == nil {
		return 0
	}
	return b.generation.Load()
}

// GiveBack gives n tokens back that were admitted and then not used. Into the pot they go only if nothing has left for
// Redis since gen was read: a call that left reported them as spent, and others may be using their place. Otherwise they
// go back to Redis, within 50 ms and once: what is lost on the way is burnt. s is what they were counted by; see [Verdict].
//
// It reports false, and does nothing, when this bucket is closed: look the key up again, and give them back there as
// FromRedis, in the generation that it has now.
func (b *Bucket) GiveBack(now time.Duration, n int64, from Source, gen int64, s *Stamp) (Effect, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case from == FromShare && b.closed: // its debt was charged or forgiven
		return Effect{}, true
	case b.closed:
		return Effect{}, false
	}
	b.needLease()
	switch {
	case from == FromShare:
		b.account(now)
		// A call under way may have charged its part of the debt already: that is not given back.
		b.debt.admitted -= min(n, b.debt.admitted-b.debt.certain-b.reporting())
		return Effect{}, true
	case gen>>eraBits != b.generation.Load()>>eraBits: // a twin of this process may give the same tokens back: see Expire
		b.ledger.burnt += n
		return Effect{}, true
	case b.Policy().Unset: // nothing was taken by it, so there is nobody whom this could be given back to
		b.ledger.burnt += n
		return Effect{}, true
	case from == FromLease && gen == b.generation.Load() && int64(now) < b.deadline.Load():
		b.pot.Add(n)
		return Effect{}, true
	}
	b.giveBackStamped(n, s)
	return b.next(now), true
}

// reporting is the debt that the call under way reports and that refill may pay.
func (b *Bucket) reporting() int64 {
	if b.freezes() {
		return b.windows().frozen - b.windows().frozenCertain
	}
	if b.pending == nil {
		return 0
	}
	return b.call.Debt - b.call.certain
}

// Owe charges n more tokens, at most one burst, for a request that turned out to cost more: the bucket may go below zero.
// It reports false, and charges nothing, when this bucket is closed: look the key up again.
func (b *Bucket) Owe(now time.Duration, n int64) (Effect, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return Effect{}, false
	}
	if b.Policy().Unset {
		return Effect{}, true // nothing was taken by it, so nothing can have cost more
	}
	b.needLease()
	n = min(n, b.Policy().Cap)
	b.debt.admitted += n
	b.debt.certain += n
	b.owe(now)
	return b.next(now), true
}
