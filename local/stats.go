package local

import "time"

// Stats counts tokens of one bucket, or of several together. Granted = Spent + Returned + Burnt + Held.
type Stats struct {
	Granted    int64 // by Redis
	Spent      int64 // admitted
	Returned   int64 // given back unspent, or refunded
	Burnt      int64 // ended unspent, or lost on the way back
	Held       int64 // in hand: unspent, or on the way back
	Refused    int64 // asked for and refused by the limit
	Failed     int64 // asked for while Redis did not answer, and not admitted
	Blocked    int64 // asked for and refused because the key is blocked. Not in Refused
	ShareSpent int64 // part of Refused: by the fallback, while Redis did not answer
	Shared     int64 // admitted by the fallback, while Redis did not answer
	Opened     int64 // admitted by fail-open, while Redis did not answer
	Settled    int64 // of Shared, Opened and charges, reported to Redis afterwards
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

// Stats reports the counts of the bucket.
func (b *Bucket) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.Policy()
	s := b.lease.stats(p.FailMode)
	s.Granted, s.Refused = b.granted, b.refused.Load()
	if p.Rule == Blocked { // the fallback refused what it did before the rule
		s.Refused, s.Blocked = s.ShareSpent, s.Refused-s.ShareSpent
	}
	s.Spent = s.Granted - s.Returned - s.Burnt - s.Held
	return s
}

// stats reports what lease, ledger and fallback count.
func (l *leaseState) stats(m FailMode) Stats {
	if l == nil {
		return Stats{}
	}
	s := l.outage.stats(m, l.outage.unbooked.Load())
	s.Returned, s.Burnt = l.ledger.returned, l.ledger.burnt
	s.Settled = l.outage.settled
	s.Held = l.pot.tokens.Load() + l.ledger.toReturn + l.ledger.toRefund
	return s
}

// spent reports the tokens admitted so far from what Redis granted. Takers may add to it meanwhile.
func (b *Bucket) spent() int64 { return b.granted - b.lease.unspent() }

// account brings fallback and demand up to date with what was admitted and asked for.
func (b *Bucket) account(now time.Duration) {
	mode := b.Policy().FailMode
	spent := b.spent()
	if spent == b.fallback.debited && now-b.demand.at < minInterval && mode != FailOpen {
		return // nothing is new, and what was asked for is sampled later
	}
	if b.lease != nil && mode == FailOpen { // first, because it was earlier
		o := &b.lease.outage
		at := min(now, time.Duration(o.bookAt.Load()))
		b.bookOpened(at, o.unbooked.Swap(0)) // deciders add to it without the mutex
		o.bookAt.Store(int64(now + bookDelay))
	}
	b.fallback.debit(now, spent-b.fallback.debited)
	if p := b.Policy(); p.NearLimit != nil && spent > b.fallback.debited && b.lease.live(now)+b.levelAt(now) < p.Cap/5 {
		p.NearLimit.Add(spent - b.fallback.debited)
	}
	b.fallback.debited = spent
	offered := spent + b.refused.Load()
	if l := b.lease; l != nil {
		f := l.outage.stats(mode, l.outage.unbooked.Load())
		offered += f.Shared + f.Opened + f.Failed // what the fallback refused is part of refused already
	}
	b.demand.sample(now, offered, b.Policy().Cap, b.denied.Load().scarce())
}

// foldRefused takes what was refused out of the counts, except what the fallback refused, and reports it: what the limit
// refused, or what was refused because the rule is Blocked.
func (b *Bucket) foldRefused() (limited, blocked int64) {
	share := b.lease.stats(b.Policy().FailMode).ShareSpent
	n := b.refused.Swap(share) - share
	b.demand.offers -= n
	if b.Policy().Rule == Blocked {
		return 0, n
	}
	return n, 0
}

// foldFallback takes what was counted by fail mode out of the counts and reports it, so that another mode can count on.
func (b *Bucket) foldFallback(now time.Duration) Stats {
	if b.lease == nil {
		return Stats{}
	}
	f, mode := &b.lease.outage, b.Policy().FailMode
	n := f.unbooked.Swap(0) // deciders add to it without the mutex
	if mode == FailOpen {
		b.bookOpened(min(now, time.Duration(f.bookAt.Load())), n)
		n = 0
	}
	s := f.stats(mode, n)
	s.Refused = s.ShareSpent
	b.refused.Add(-s.Refused)
	b.demand.offers -= s.Shared + s.ShareSpent + s.Opened + s.Failed
	f.booked = 0
	return s
}
