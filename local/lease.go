package local

import (
	"sync/atomic"
	"time"
)

// stake is what stands between this process and Redis: what it has leased, what is to go back, what it owes, and whether
// Redis fails it. A bucket that only ever takes tokens directly has none.
type leaseState struct {
	// What decisions touch, most often the first three, which three times in four share a cache line. Only takers shrink
	// the pot without the mutex; everything else changes under it.
	pot        atomic.Int64 // tokens of the lease that nobody took
	deadline   atomic.Int64 // ns since the base: from here on the pot is dead
	low        atomic.Int64 // low-water mark
	renewAt    atomic.Int64 // ns since the base: no renewal before; never while a call is under way or queued
	bookAt     atomic.Int64 // ns since the base: until then fail-open only counts
	maxCost    atomic.Int64 // the largest single cost of late, if above 1
	generation atomic.Int64 // of the pot: rises whenever something has left for Redis or the pot was emptied; see eraBits

	ack       int64         // highest seq of a lease call whose reply was accepted; unknown before the first call
	outUntil  time.Duration // until then Redis may count tokens as out to this process
	lastGrant int64         // the last lease's
	backOff   time.Duration // after a failure: not asked until then

	usedAt    time.Duration // when spent was first seen at usedSpent
	usedSpent int64

	debt   debt
	ledger ledger
}

// eraBits are the low bits of a generation. Those above them count the lease ids that the bucket had: a new id is a new
// era, and what was taken in an older one is not given back.
const eraBits = 40

// unknown is the ack of a process that Redis does not know yet.
const unknown = -1

// needStake sees to it that there is a stake.
func (b *Bucket) needLease() {
	if b.leaseState != nil {
		return
	}
	b.leaseState = &leaseState{ack: unknown}
	for w := range b.queue() {
		if w.cost > max(b.maxCost.Load(), 1) {
			b.maxCost.Store(w.cost)
		}
	}
	b.open()
}

// open lets decisions go on without the mutex, or not.
func (b *Bucket) open() {
	b.ready.Store(b.leaseState != nil && b.waiting() == 0 && !b.closed && b.byLimit())
}

// byLimit reports whether the limit decides at all.
func (b *Bucket) byLimit() bool { return b.Policy().Rule == ByLimit }

func (b *Bucket) take(now time.Duration, n int64) (pot int64, ok bool) {
	if b.leaseState == nil {
		return 0, false
	}
	for {
		v := b.pot.Load()
		if v < n || int64(now) >= b.deadline.Load() {
			return v, false
		}
		if b.pot.CompareAndSwap(v, v-n) {
			return v - n, true
		}
	}
}

// live reports the tokens of the pot that may still be spent.
func (b *Bucket) live(now time.Duration) int64 {
	if b.leaseState == nil || int64(now) >= b.deadline.Load() {
		return 0
	}
	return b.pot.Load()
}

// askFrom allows renewals from a time on.
func (b *Bucket) askFrom(at time.Duration) {
	if b.leaseState != nil {
		b.renewAt.Store(int64(at))
	}
}

// drain empties the pot into what is to be given back.
func (b *Bucket) drain() {
	b.ledger.toReturn += b.pot.Swap(0)
	b.generation.Add(1)
}

// burn empties the pot for nothing.
func (b *Bucket) burn() {
	b.ledger.burnt += b.pot.Swap(0)
	b.generation.Add(1)
}
