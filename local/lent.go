package local

// Lent notes that another bucket of the same key admitted n tokens that this one had refused, with that outcome. They count
// as asked for and admitted here, for the demand and for the share, which is the key's: so a process that borrows starts an
// outage with no more than it would have from one bucket. And they were not refused.
//
// It reports false, and notes nothing, when this bucket is closed: look the key up again.
func (b *Bucket) Lent(n int64, refused Outcome) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.debited -= n // that much more will be debited
	mode := b.Policy().FailMode
	switch {
	case refused == Refused:
		b.refused.Add(-n)
	case refused == ShareSpent && mode == FailLocal:
		b.refused.Add(-n)
		b.ledger.booked -= n
	case refused == Failed && mode == FailClosed:
		b.ledger.alone.Add(-n)
	default: // the mode was changed since, so what was refused is with the owner's figures already
		return true
	}
	b.demand.offers -= n // or asking the other bucket would look like less demand
	return true
}
