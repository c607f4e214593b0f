package local

import "time"

// SetPolicy has the bucket go on under another policy of the same Number. It reports what the bucket had
// counted by fail mode, or because the rule is Blocked, if p has another mode or rule: the owner keeps these counts
// from now on.
//
// Nothing is minted and nothing is taken away. What came until now came by the old numbers, here, in the fallback and in
// Redis, and is clamped if the burst is smaller. What is known to be denied is forgotten, so that a raised limit shows
// at once. Those who wait and whom p will never admit, or who need not ask, get Outdated: look again.
//
// Redis counts by the old numbers until the next call of the key brings others. If the limit is lowered, what is leased
// under the larger one is not spent any more: it goes back, by a call that brings them.
//
// Under a rule by which no limit decides the bucket keeps its numbers for as long as it lives: what comes back of a
// reservation, a call under way, a lease or a debt was taken by them.
//
// It does nothing, and reports false, if the bucket does not go by the policy has any more. nil is any policy.
func (b *Bucket) SetPolicy(now time.Duration, has, p *Policy) (folded Stats, e Effect, set bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.Policy()
	if has != nil && has != old {
		return Stats{}, Effect{}, false
	}
	if p.Rule != ByLimit && !old.Unset { // what comes back goes by the numbers that it was taken by
		p = old.WithRule(p.Rule)
	}
	if b.life == closed {
		b.policy.Store(p)
		return Stats{}, Effect{}, true
	}
	b.account(now)
	folded = b.fold(now, p)
	b.changeNumbers(now, old, p)
	b.policy.Store(p)
	if p.Cap != old.Cap || p.Tokens != old.Tokens || p.Per != old.Per {
		b.view.doubt()
	}
	if b.view.fleet != 0 && p.Rule == ByLimit {
		b.fallback.resize(p, now, int64(b.view.fleet), false)
	}
	if b.view.epoch == 0 && b.lease == nil { // never asked for: an absent bucket is full
		b.view.level.Store(p.Cap)
	}
	if p.numbers() != old.numbers() || p.Rule != old.Rule || p.FailMode != old.FailMode || p.Window != old.Window {
		b.denied.clear()
	}
	if !b.queued && !b.pending.calling() {
		b.lease.renewFrom(max(now, b.lease.backOffEnd()))
	}
	for w := range b.pending.waiting() {
		if p.Rule != ByLimit || w.cost > p.Cap {
			b.pending.waiters.decide(w, Verdict{Outcome: Outdated})
		}
	}
	b.deliver()
	return folded, b.next(now), true
}

// Inherit makes b the successor of a closed bucket of its key, before something comes back that was taken there. p was
// the policy of that bucket. If nobody has set b's numbers, it goes by those of p.
func (b *Bucket) Inherit(p *Policy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if old := b.Policy(); old.Unset && !p.Unset {
		b.policy.Store(p.WithRule(old.Rule))
	}
}

// changeNumbers brings what is known of the level up to now by the old numbers, before p is in force.
func (b *Bucket) changeNumbers(now time.Duration, old, p *Policy) {
	was := old.numbers()
	known := !old.Unset // else the old numbers are nobody's
	if p.Rule != ByLimit || known && was == p.numbers() {
		return
	}
	b.lease.lower(now, was, p)
	if p.Call.Algorithm.Window() { // no rate, so nothing came by the old one, and what is counted stays
		if known && old.First == p.First {
			b.view.level.Add(p.Cap - old.Cap)
		}
		return
	}
	neverAsked := b.view.epoch == 0 && !b.queued && !b.pending.calling()
	full, level := neverAsked, b.view.level.Load()
	if known {
		full, level = b.full(now), b.levelAt(now)
		b.view.at = now
	}
	if full { // an absent bucket is
		b.view.level.Store(p.Cap)
		return
	}
	b.view.level.Store(min(level, p.Cap))
	switch {
	case p.Cap < was.Cap:
		b.view.certainty |= outgrown
	case level >= was.Cap: // full by the old limit, as far as is known, so Redis may have forgotten it
		b.view.setCertainty(another)
	}
}

// full reports whether the bucket in Redis is full with nothing out, by all that is known here, and so as good as none.
func (b *Bucket) full(now time.Duration) bool {
	if b.view.certainty&outgrown != 0 || b.view.failures > 0 || b.queued || b.pending.calling() {
		return false
	}
	if b.lease.out(now) || b.lease.owes() {
		return false
	}
	return b.levelAt(now) >= b.Policy().Cap
}
