package local

import "time"

// SetPolicy has the bucket go on by another policy of the same Number and Owner, and reports what the bucket had counted
// that counts by fail mode, or by whether the rule is Blocked, where p has another one: that is the owner's to keep from now on.
//
// Nothing is minted and nothing is taken away: what came until now came by the old numbers, here, in the share and in Redis,
// and is clamped when the burst is smaller. What is known to be denied is forgotten, so that a raised limit shows at once.
// Those in line whom p will never admit, or who need not ask, get Gone: look again.
//
// Redis counts by the old numbers until a call brings others. So where they change, and the bucket is not known to be full,
// the Effect says Tell: one call, that nobody waits for, and no more of them than were made since the bucket was full. It takes
// nothing; it tells when the new rate began, and the key in Redis lives by it. If it comes to nothing, the next call tells.
// Where the limit is lowered, what is leased under the larger one is spent no more: it goes back.
//
// Under a rule by which no limit decides the bucket keeps its numbers, for as long as it lives: what comes back, of a
// reservation, a call under way, a lease or a debt, was taken by them.
func (b *Bucket) SetPolicy(now time.Duration, p *Policy) (Stats, Effect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.Policy()
	if p.Rule != ByLimit && !old.Unset { // what comes back goes by the numbers that it was taken by
		p = old.Under(p.Rule)
	}
	var folded Stats
	if b.closed {
		b.policy.Store(p)
		return folded, Effect{}
	}
	b.account(now)
	if (p.Rule == Blocked) != (old.Rule == Blocked) {
		folded.Refused, folded.Blocked = b.foldRefused()
	}
	if p.FailMode != old.FailMode {
		folded.Add(b.fold(now))
	}
	b.changeNumbers(now, old, p)
	b.policy.Store(p)
	if p.Cap != old.Cap || p.Tokens != old.Tokens || p.Per != old.Per {
		b.certainty = doubtful
	}
	if b.fleet != 0 && p.Rule == ByLimit {
		b.share.resize(p, now, int64(b.fleet), false)
	}
	if b.epoch == 0 && b.leaseState == nil { // never asked for: an absent bucket is full
		b.level.Store(p.Cap)
	}
	if w := b.windows(); w != nil {
		b.denied.Store(&denial{windows: w})
	} else {
		b.denied.Store(nil)
	}
	if !b.queued && !b.calling() && b.leaseState != nil {
		b.askFrom(max(now, b.backOff))
	}
	for w := range b.queue() {
		if p.Rule != ByLimit || w.cost > p.Cap {
			b.waiters.end(w, Verdict{Outcome: Gone})
		}
	}
	b.conclude()
	effect := b.next(now)
	effect.Tell = b.mustReport() && !b.queued && !b.calling()
	return folded, effect
}

// Inherit makes b the successor of a closed bucket of its key, whose policy p was, before something comes back that was taken
// there: where nobody has set b's numbers, it goes by those.
func (b *Bucket) Inherit(p *Policy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if old := b.Policy(); old.Unset && !p.Unset {
		b.policy.Store(p.Under(old.Rule))
	}
}

// turn brings what is known of the level up to now by the old numbers, before p is in force, and notes whether Redis is to hear
// of others.
func (b *Bucket) changeNumbers(now time.Duration, old, p *Policy) {
	was := old.numbers()
	known := !old.Unset // else the old numbers are nobody's
	if p.Rule != ByLimit || known && was == p.numbers() {
		return
	}
	b.lower(now, was, p)
	if p.Counting == Counts || p.Counting == Logs { // no rate, so nothing came by the old one
		return
	}
	full, level := b.epoch == 0 && !b.queued && !b.calling(), b.level.Load() // never asked for
	if known {
		full, level = b.full(now), b.levelAt(now)
		b.seenAt = now
	}
	if full { // an absent bucket is
		b.level.Store(p.Cap)
		return
	}
	b.level.Store(min(level, p.Cap))
	if b.probe == probeNot && !b.retired { // else a call will come that tells
		b.probe = probeTell
	}
}

// lower takes what is leased out of use when p is below the limit that it was leased under: it is to go back.
func (b *Bucket) lower(now time.Duration, was Numbers, p *Policy) {
	if b.leaseState != nil && now < b.outUntil && p.numbers().below(was) {
		b.drain()
	}
}

// full reports whether the bucket in Redis is full, by all that is known here, with nothing out.
func (b *Bucket) full(now time.Duration) bool {
	if b.queued || b.calling() || b.failures > 0 || b.leaseState != nil && (now < b.outUntil || b.settles()) {
		return false
	}
	return b.levelAt(now) >= b.Policy().Cap
}

// tells reports whether a call is wanted that tells Redis of another limit.
func (b *Bucket) mustReport() bool { return b.probe == probeTell && b.byLimit() && !b.closed }

// decides reports whether the limit is what decides over n tokens. It was so when the owner looked, but it may have changed.
func (b *Bucket) decides(n int64) bool {
	p := b.Policy()
	return p.Rule == ByLimit && n <= p.Cap
}

// foldRefused takes what was refused, but for what the share has, out of the books: by the limit, or because the rule is Blocked.
func (b *Bucket) foldRefused() (limited, blocked int64) {
	share := int64(0)
	if b.leaseState != nil {
		share = b.ledger.byMode(b.Policy().FailMode, b.ledger.unbooked.Load()).ShareSpent
	}
	n := b.refused.Swap(share) - share
	b.demand.offers -= n
	if b.Policy().Rule == Blocked {
		return 0, n
	}
	return n, 0
}

// fold takes what was counted by fail mode out of the books, so that another mode may count on.
func (b *Bucket) fold(now time.Duration) (s Stats) {
	if b.leaseState == nil {
		return s
	}
	l, mode := &b.ledger, b.Policy().FailMode
	n := l.unbooked.Swap(0) // takers add to it without the mutex
	if mode == FailOpen {
		b.enter(now, n)
		n = 0
	}
	s = l.byMode(mode, n)
	s.Refused = s.ShareSpent
	b.refused.Add(-s.Refused)
	b.demand.offers -= s.Shared + s.ShareSpent + s.Opened + s.Failed
	l.booked = 0
	return s
}
