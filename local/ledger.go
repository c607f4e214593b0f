package local

import "time"

// ledger counts tokens, since the bucket was made. At any time
//
//	granted = spent + pot + ret + refund + returned + refunded + burnt
//
// of which spent is what that equation leaves: the hot path counts nothing.
type ledger struct {
	granted  int64 // by Redis, to the pot or directly
	ret      int64 // of the lease, to be given back: repeated until accepted
	refund   int64 // admitted or granted, then not used: to be given back once
	returned int64
	refunded int64
	burnt    int64 // ended unspent, or lost on the way back
	debited  int64 // part of spent that the share was charged with

	refused int64 // asked for and refused by the limit
	failed  int64 // asked for while Redis did not answer, and not admitted
	shared  int64 // admitted by the share
	opened  int64 // admitted by fail-open
	settled int64 // of those two, charged to the bucket or forgiven by it
}

// offered reports all that was ever asked for.
func (l *ledger) offered(spent int64) int64 {
	return spent + l.refused + l.failed + l.shared + l.opened
}

// Stats is what one bucket, or several together, went through, in tokens. Granted = Spent + Returned + Burnt + Held.
type Stats struct {
	Granted  int64 // by Redis
	Spent    int64 // admitted
	Returned int64 // given back unspent or refunded
	Burnt    int64 // ended unspent, or lost on the way back
	Held     int64 // in hand: unspent, or on the way back
	Refused  int64 // asked for and refused by the limit
	Failed   int64 // asked for while Redis did not answer, and not admitted
	Shared   int64 // admitted by the share, while Redis did not answer
	Opened   int64 // admitted by fail-open, while Redis did not answer
	Settled  int64 // of Shared and Opened, reported to Redis afterwards
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
	s.Shared += t.Shared
	s.Opened += t.Opened
	s.Settled += t.Settled
}

// Stats reports the bucket's.
func (b *Bucket) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := &b.ledger
	held := b.pot.Load() + l.ret + l.refund
	return Stats{
		Granted: l.granted, Returned: l.returned + l.refunded, Burnt: l.burnt, Held: held,
		Spent:   l.granted - l.returned - l.refunded - l.burnt - held,
		Refused: l.refused, Failed: l.failed, Shared: l.shared, Opened: l.opened, Settled: l.settled,
	}
}

// spent reports the tokens admitted so far, but for what takers take meanwhile.
func (b *Bucket) spent() int64 {
	l := &b.ledger
	return l.granted - b.pot.Load() - l.ret - l.refund - l.returned - l.refunded - l.burnt
}

// account brings share and demand up to date with what was admitted and asked for.
func (b *Bucket) account(now time.Duration) {
	spent := b.spent()
	b.share.debit(now, spent-b.ledger.debited)
	b.ledger.debited = spent
	b.demand.sample(now, b.ledger.offered(spent), b.policy.Cap)
}

// drain empties the pot into what is to be given back.
func (b *Bucket) drain() {
	b.ledger.ret += b.pot.Swap(0)
	b.gen.Add(1)
}

// burn empties the pot for nothing.
func (b *Bucket) burn() {
	b.ledger.burnt += b.pot.Swap(0)
	b.gen.Add(1)
}
