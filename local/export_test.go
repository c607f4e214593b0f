package local

import "time"

// What happens within a bucket and shows only in calls that come later, or in none. The tests of
// the cache and of a bucket's parts (cache, front, pot, demand, size, share, denial) stand inside
// the package: nothing of them is exported.

const (
	MinIdle     = minIdle     // how long a lease lies idle at least
	RefundDelay = refundDelay // how long what goes back waits for company
	Never       = never       // a time that does not come
)

// Retire, Revive and Finish are what the cache does with a bucket that it evicts.
func (b *Bucket) Retire(now time.Duration) Effect { return b.retire(now) }
func (b *Bucket) Revive()                         { b.revive() }
func (b *Bucket) Finish(now time.Duration) bool   { return b.finish(now) }
func (b *Bucket) Retired() bool                   { return b.hot.retired() }
func (b *Bucket) Closed() bool                    { return b.hot.life == closed }

// SetDemand spares a test the seconds in which a bucket learns what is asked for.
func (b *Bucket) SetDemand(rate float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.demand.rate = rate
}

func (b *Bucket) Demand() float64 { return b.demand.rate }

// Account is the bookkeeping that any step with the mutex begins with, and Offers what counts as
// asked for until now.
func (b *Bucket) Account(now time.Duration) { b.account(now) }

func (b *Bucket) Offers(now time.Duration) int64 {
	b.account(now)
	return b.demand.offers
}

// Pot is what takers may take, whatever the time. Deadline is when the lease ends, BackOff until
// when no call is made, and HoldOff until when everything is refused.
func (b *Bucket) Pot() (tokens int64) {
	if b.hot.lease != nil {
		tokens = b.hot.lease.pot.tokens.Load()
	}
	return tokens
}

func (b *Bucket) Deadline() (at time.Duration) {
	if b.hot.lease != nil {
		at = time.Duration(b.hot.lease.pot.deadline.Load())
	}
	return at
}

func (b *Bucket) BackOff() (at time.Duration) {
	if b.hot.lease != nil {
		at = b.hot.lease.backOff
	}
	return at
}

func (b *Bucket) HoldOff() (at time.Duration) {
	if d := b.hot.denied.Load(); d != nil {
		at = d.holdOff
	}
	return at
}

// Heal and ForgetDenial let a test ask again at the same instant.
func (b *Bucket) Heal() {
	if b.hot.lease != nil {
		b.hot.lease.backOff = 0
	}
}
func (b *Bucket) ForgetDenial() { b.hot.denied.Store(nil) }

// Denial is what is known to be refused: readers without a lock must see one that never changes.
type Denial = denial

func (b *Bucket) Denial() *Denial { return b.hot.denied.Load() }

// Awaits reports whether a waiter waits for its outcome.
func (b *Bucket) Awaits(w *Waiter) bool { return w.waits }

// Pending reports whether somebody waits or a call is under way, and Calling the latter.
func (b *Bucket) Pending() bool { return b.pending != nil }
func (b *Bucket) Calling() bool { return b.pending.calling() }

// Owing is what is owed, and the part of it that no refill pays. Booked is what the books have of
// it: fail-open only counts at first.
func (b *Bucket) Owing() (admitted, certain int64) {
	if b.hot.lease != nil {
		admitted, certain = b.hot.owing(), b.hot.lease.outage.debt.certain
	}
	return admitted, certain
}

func (b *Bucket) Booked() (admitted int64) {
	if b.hot.lease != nil {
		admitted = b.hot.lease.outage.debt.admitted
	}
	return admitted
}

// NeedLease makes the lease state that the first wish for a lease makes, and Next says what is to
// be done for it.
func (b *Bucket) NeedLease()                    { b.needLease() }
func (b *Bucket) Next(now time.Duration) Effect { return b.next(now) }

// ToRefund is what was taken and goes back, and SettledNow the part of it that a call gives a log
// back.
func (b *Bucket) ToRefund() int64 { return b.hot.lease.ledger.toRefund }
func (c *Call) SettledNow() int64 { return c.settledNow }

// Epoch is that of the bucket in Redis.
func (b *Bucket) Epoch() int64 { return b.hot.view.epoch }

// Yields is a pause that lets others go first.
var Yields = yields

func (b *Bucket) Lives(now time.Duration, epoch int64) (surely, likely bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hot.lives(now, epoch)
}
