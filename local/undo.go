package local

// TakeBack takes back that n tokens were refused, with that outcome, because another bucket of the same key has decided over
// them: lent is what it admitted of them. They stay asked for here. What was lent the share pays for, as for what was
// admitted here: it is the key's, so a process that borrows starts an outage with no more than it would have from one bucket.
//
// It reports false, and notes nothing, when this bucket is closed: look the key up again.
func (b *Bucket) TakeBack(n, lent int64, refused Outcome) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.debited -= lent // so much more is to be debited
	mode := b.Policy().FailMode
	switch {
	case refused == Refused:
		b.refused.Add(-n)
	case refused == ShareSpent && mode == FailLocal:
		b.needLease() // the bucket may be new, if the one that refused was evicted
		b.refused.Add(-n)
		b.ledger.unbooked.Add(-n)
	case refused == Failed && mode == FailClosed:
		b.needLease()
		b.ledger.unbooked.Add(-n)
	default: // the mode was changed since, so what was refused is with the owner's figures already
		return true
	}
	b.demand.offers -= n // or borrowing would look like less demand
	return true
}
