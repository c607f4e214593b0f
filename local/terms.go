package local

import "time"

// SetPolicy has the bucket go on by another policy of the same Number and Owner, and reports what the bucket had counted
// that counts by fail mode, or by whether the rule is Blocked, where p has another one: that is the owner's to keep from now on.
//
// Nothing is minted and nothing is taken away: the level in Redis is absolute, and clamped there by the next call when the
// burst is smaller; a lease is spent to its end, for it was debited; the share keeps its tokens, up to its new burst. What
// is known to be denied is forgotten, so that a raised limit shows at once. Those in line whom p will never admit, or who
// need not ask, get Gone: look again. Under a rule by which no limit decides the bucket keeps its numbers, for as long as it
// lives: what comes back, of a reservation, a call under way, a lease or a debt, was taken by them.
func (b *Bucket) SetPolicy(now time.Duration, p *Policy) (Stats, Effect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.Policy()
	if p.Rule != ByLimit && !old.Unset { // what comes back goes by the numbers that it was taken by
		p = old.Under(p.Rule)
	}
	var folded Stats
	if b.closed {
		b.terms.Store(p)
		return folded, Effect{}
	}
	b.account(now)
	if (p.Rule == Blocked) != (old.Rule == Blocked) {
		folded.Refused, folded.Blocked = b.foldRefused()
	}
	if p.FailMode != old.FailMode {
		folded.Add(b.fold(now))
	}
	b.terms.Store(p)
	if b.fleet != 0 && p.Rule == ByLimit {
		b.share.resize(p, now, int64(b.fleet), false)
	}
	if b.epoch == 0 && b.stake == nil { // never asked for: an absent bucket is full
		b.level.Store(p.Cap)
	}
	if w := b.windowed(); w != nil {
		b.denied.Store(&denial{windows: w})
	} else {
		b.denied.Store(nil)
	}
	if !b.queued && !b.calling() && b.stake != nil {
		b.askFrom(max(now, b.backOff))
	}
	for w := range b.queue() {
		if p.Rule != ByLimit || w.cost > p.Cap {
			b.line.end(w, Verdict{Outcome: Gone})
		}
	}
	b.settleDown()
	return folded, b.next(now)
}

// Inherit makes b the successor of a closed bucket of its key, whose policy p was, before something comes back that was taken
// there: where nobody has set b's numbers, it goes by those.
func (b *Bucket) Inherit(p *Policy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if old := b.Policy(); old.Unset && !p.Unset {
		b.terms.Store(p.Under(old.Rule))
	}
}

// decides reports whether the limit is what decides over n tokens. It was so when the owner looked, but it may have changed.
func (b *Bucket) decides(n int64) bool {
	p := b.Policy()
	return p.Rule == ByLimit && n <= p.Cap
}

// foldRefused takes what was refused, but for what the share has, out of the books: by the limit, or because the rule is Blocked.
func (b *Bucket) foldRefused() (limited, blocked int64) {
	share := int64(0)
	if b.stake != nil {
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
	if b.stake == nil {
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
