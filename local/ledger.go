package local

import (
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// ledger counts tokens, since the bucket was made. At any time
//
//	granted = spent + pot + ret + refund + returned + burnt
//
// of which granted is kept by the bucket, and spent is what that equation leaves: the hot path counts nothing.
type ledger struct {
	toReturn int64 // of the lease, to be given back: repeated until accepted
	toRefund int64 // admitted or granted, then not used: to be given back once
	returned int64 // either of them, accepted
	burnt    int64 // ended unspent, or lost on the way back

	// While Redis does not answer. By fail mode, unbooked is what fail-open admitted since it was last booked, what
	// fail-closed refused, or what the share refused.
	unbooked atomic.Int64
	booked   int64 // admitted, and known to share and debt
	settled  int64 // of that, charged to the bucket or forgiven by it
}

// refunded notes that a call with n tokens to refund was answered: they are back, or burnt if Redis did not credit
// them. They are not sent again: a copy of that call, executed when the record that knows it is over, could credit
// them too.
func (l *ledger) refundAnswered(n int64, r lua.Reply) {
	l.toRefund -= n
	if r.Flags&lua.Unapplied != 0 {
		l.burnt += n
	} else {
		l.returned += n
	}
}

// bookAfter is how long what fail-open admits may go unbooked, so that most decisions need no lock: shorter than anything
// that a share or a debt is compared with.
const bookAfter = time.Millisecond

// Stats is what one bucket, or several together, went through, in tokens. Granted = Spent + Returned + Burnt + Held.
type Stats struct {
	Granted    int64 // by Redis
	Spent      int64 // admitted
	Returned   int64 // given back unspent or refunded
	Burnt      int64 // ended unspent, or lost on the way back
	Held       int64 // in hand: unspent, or on the way back
	Refused    int64 // asked for and refused by the limit
	Failed     int64 // asked for while Redis did not answer, and not admitted
	Blocked    int64 // asked for and refused because the key is blocked: not in Refused
	ShareSpent int64 // part of Refused: while Redis did not answer, by the share
	Shared     int64 // admitted by the share, while Redis did not answer
	Opened     int64 // admitted by fail-open, while Redis did not answer
	Settled    int64 // of Shared and Opened, reported to Redis afterwards
}

// Add adds t to s.
func (s *Stats) Add(t Stats) {
	s.Granted += t.Granted
	s.Spent += t.Spent
	s.Returned += t.Returned
	s.Burnt += t.Burnt
	s.Held += t.Held
	s.Refused += t.Refused
	s.Failed += t.Failed
	s.Blocked += t.Blocked
	s.ShareSpent += t.ShareSpent
	s.Shared += t.Shared
	s.Opened += t.Opened
	s.Settled += t.Settled
}

// Stats reports the bucket's.
func (b *Bucket) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Stats{Granted: b.granted, Refused: b.refused.Load()}
	if b.leaseState != nil {
		l := &b.ledger
		s.Returned, s.Burnt, s.Settled = l.returned, l.burnt, l.settled
		s.Held = b.pot.Load() + l.toReturn + l.toRefund
		s.Add(l.byMode(b.Policy().FailMode, l.unbooked.Load()))
	}
	if b.Policy().Rule == Blocked { // the share refused what it did before
		s.Refused, s.Blocked = s.ShareSpent, s.Refused-s.ShareSpent
	}
	s.Spent = s.Granted - s.Returned - s.Burnt - s.Held
	return s
}

// byMode is what a fail mode came to: one mode answers for all that was asked for while Redis did not answer.
func (l *ledger) byMode(m FailMode, unbooked int64) Stats {
	switch m {
	case FailOpen:
		return Stats{Opened: l.booked + unbooked}
	case FailClosed:
		return Stats{Failed: unbooked}
	}
	return Stats{Shared: l.booked, ShareSpent: unbooked}
}

// spent reports the tokens admitted so far, but for what takers take meanwhile.
func (b *Bucket) spent() int64 {
	if b.leaseState == nil {
		return b.granted
	}
	l := &b.ledger
	return b.granted - b.pot.Load() - l.toReturn - l.toRefund - l.returned - l.burnt
}

// account brings share and demand up to date with what was admitted and asked for.
func (b *Bucket) account(now time.Duration) {
	spent := b.spent()
	if spent == b.debited && now-b.demand.at < minInterval && b.Policy().FailMode != FailOpen {
		return // nothing is new, and what was asked for is sampled later
	}
	b.share.debit(now, spent-b.debited)
	b.debited = spent
	offered := spent + b.refused.Load()
	if b.leaseState != nil {
		b.book(now)
		alone := b.ledger.byMode(b.Policy().FailMode, b.ledger.unbooked.Load())
		offered += alone.Shared + alone.Opened + alone.Failed // what the share refused is among what was refused
	}
	b.demand.sample(now, offered, b.Policy().Cap, b.denied.Load().scarce())
}

// book brings share and debt up to date with what fail-open admitted.
func (b *Bucket) book(now time.Duration) {
	if b.Policy().FailMode == FailOpen {
		b.enter(now, b.ledger.unbooked.Swap(0)) // takers add to it without the mutex
		b.bookAt.Store(int64(now + bookAfter))
	}
}

// enter is book for what fail-open admitted since the last time.
func (b *Bucket) enter(now time.Duration, opened int64) {
	if opened > 0 {
		b.ledger.booked += opened
		b.share.debit(now, opened)
		b.debt.admitted += opened
		b.owe(now)
	}
}

// owing reports what was admitted alone and is not settled.
func (b *Bucket) owing() int64 {
	if b.Policy().FailMode != FailOpen {
		return b.debt.admitted
	}
	return b.debt.admitted + b.ledger.unbooked.Load()
}
