package local

import (
	"sync/atomic"
	"time"
)

// outage counts what the fail mode decided while Redis did not answer, in tokens.
//
// Invariant: settled ≤ what was ever booked and owed. Each admitted token is in exactly one of
// unbooked and booked.
type outage struct {
	// unbooked is, by fail mode, what fail-open admitted since the last booking, what fail-closed
	// refused, or what the fallback refused. Deciders add to it without the mutex.
	unbooked atomic.Int64
	bookAt   atomic.Int64 // ns since the base: until then fail-open only counts. What it counted was admitted by then

	booked  int64 // admitted, and charged to the fallback and the debt
	settled int64 // of the debt, charged to the bucket or forgiven by it
	debt    debt
}

// bookDelay is how long fail-open may only count, so that most decisions need no lock. It is
// shorter than anything that a fallback or a debt is compared with.
const bookDelay = time.Millisecond

// owing reports what was admitted without Redis and is not settled.
func (o *outage) owing(m FailMode) int64 {
	if m == FailOpen {
		return o.debt.admitted + o.unbooked.Load()
	}
	return o.debt.admitted
}

// stats says what the counts mean under a fail mode.
func (o *outage) stats(m FailMode, unbooked int64) Stats {
	switch m {
	case FailOpen:
		return Stats{Opened: o.booked + unbooked}
	case FailClosed:
		return Stats{Failed: unbooked}
	}
	return Stats{Fallback: o.booked, FallbackSpent: unbooked}
}

// forgive drops the debt and reports it.
func (o *outage) forgive(m FailMode) (forgiven int64) {
	forgiven = o.owing(m)
	o.debt = debt{}
	if m == FailOpen {
		o.booked += o.unbooked.Swap(0)
	}
	return forgiven
}
