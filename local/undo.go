package local

// UndoRefusal takes back that n tokens were refused, with that outcome, because another bucket of the same key has
// decided over them. lent is what that bucket admitted of them. They stay asked for here. The share pays for what was
// lent as for what was admitted here: the share is the key's, so a process that borrows starts an outage with no more
// than it would have from one bucket.
//
// It reports false, and notes nothing, if this bucket is closed: look the key up again.
func (b *Bucket) UndoRefusal(n, lent int64, refused Outcome) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == closed {
		return false
	}
	b.fallback.debited -= lent // so much more is to be debited
	mode := b.Policy().FailMode
	switch {
	case refused == Refused:
		b.refused.Add(-n)
	case refused == ShareSpent && mode == FailLocal:
		b.refused.Add(-n)
		b.needLease().outage.unbooked.Add(-n) // the bucket may be new, if the one that refused was evicted
	case refused == Failed && mode == FailClosed:
		b.needLease().outage.unbooked.Add(-n)
	default: // the mode was changed since, and the owner has counted what was refused
		return true
	}
	b.demand.offers -= n // or borrowing would look like less demand
	return true
}
