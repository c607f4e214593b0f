package local

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Ask decides over n tokens, 1 ≤ n ≤ Cap, when Take and Refuse did not. Waiting means that w waits,
// until its outcome comes through w.C or [Bucket.Leave] takes it out. until is when the caller
// stops waiting.
func (b *Bucket) Ask(now time.Duration, n int64, until time.Duration, w *Waiter) (Outcome, Effect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hot.life == closed || !b.Policy().decides(n) {
		return because(Outdated), Effect{}
	}
	need := n // from Redis
	if b.pending.count() == 0 && (w.AskAgain || !b.hot.denied.Load().reserves()) {
		if held, ok := b.hot.lease.take(now, n); ok {
			effect := Effect{}
			if b.hot.lease.pot.renewable(now, held) {
				effect = b.send()
			}
			return b.hot.grant(w, Local, b.hot.remaining(held)), effect
		}
		need -= b.hot.lease.live(now)
	}
	w.cost, w.since, w.until = n, now, until
	w.MoreGranted, w.Short, w.asked = 0, false, false
	if retry, refused := w.refusal(b.hot.denied.Load(), now, need); refused {
		return b.hot.refuse(w, Local, now, retry), Effect{}
	}
	if b.backsOff(now, w.Well) {
		return b.hot.decided(Unavailable, Failover, b.hot.remaining(b.hot.lease.live(now)), 0), Effect{}
	}
	b.pending = b.pending.orNew()
	b.pending.join(w)
	b.hot.ready.Store(false)
	return because(Waiting), b.send()
}

// Leave takes w out because its caller gives up. It reports false if the outcome is in w.C already.
func (b *Bucket) Leave(w *Waiter) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !w.waits {
		return false
	}
	b.pending.leave(w)
	b.deliver()
	return true
}

// Renew asks for a renewal in the background, after a decision found the pot at its low-water mark.
// Only a decision may ask: renewals that replies ask for would starve a hot process that moves
// about.
func (b *Bucket) Renew(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hot.life == closed || b.hot.lease == nil || int64(now) < b.hot.lease.pot.renewAt.Load() {
		return Effect{}
	}
	return b.send()
}

// Reserve keeps n tokens for a caller that was refused, waits, and asks again at until: the tokens
// that are held, and those that come next. Others are refused until there are more. So callers that
// ask for little do not use up what another one waits for. The reservation lasts until Reserve is
// called with 0 tokens.
func (b *Bucket) Reserve(n int64, until time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hot.life == closed {
		return
	}
	d := b.hot.denied.copy()
	d.reserved, d.reservedUntil = n, until
	b.hot.denied.put(&d)
	b.hot.openPot(b.pending.count())
}

// Earliest reports when n tokens can be there at the earliest, by what is held here, by the level
// that Redis was last seen to have and by the refill. What others give back may come sooner. It
// reports known false if Redis granted all that was asked for, and has reported no level that was
// too low since then: the bucket may be full.
func (b *Bucket) Earliest(now time.Duration, n int64) (at time.Duration, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, d := b.Policy(), b.hot.denied.Load()
	if b.pending.count() == 0 { // also what takers do not see, because it is reserved; a call under way may spend it all
		n -= b.hot.lease.live(now)
	}
	switch {
	case n <= 0:
		return now, true
	case !d.scarce():
		if !p.Call.Algorithm.Has(lua.OneLevel) || n <= p.Cap {
			return now, false
		}
		return later(now, p.wait(float64(n-p.Cap))), false
	case d.nanos == 0:
		at, known = d.earliest(n)
		return max(at, now), known
	case d.until == 0: // the level leaves out a part of a token
		n--
	}
	return max(d.ready(n), now), true
}

// Credit asks for n tokens to be given to the bucket: 1 ≤ n ≤ 2⁴⁰ for a token bucket, or Fill. It
// is filled no further than to its room. The outcome (Granted if it is done, Unavailable, Outdated)
// comes through w.C.
func (b *Bucket) Credit(w *Waiter, n int64) (Outcome, Effect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hot.life == closed || b.Policy().Rule != ByLimit {
		return because(Outdated), Effect{}
	}
	w.cost = n
	b.pending = b.pending.orNew()
	b.pending.credits = append(b.pending.credits, w)
	return because(Waiting), b.send()
}

// awaited reports whether somebody waits for what Redis answers.
func (b *Bucket) awaited() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pending.count() > 0 || b.pending.crediting() > 0
}

// ByFailMode decides over n tokens, 1 ≤ n ≤ Cap, by the fail mode, because Redis does not answer.
// fleet is the number of processes that share the limit. In every mode a lease is spent first.
func (b *Bucket) ByFailMode(now time.Duration, n, fleet int64) Outcome {
	if v, ok := b.hot.TryFailMode(now, n); ok {
		b.hot.CountFailMode(n)
		return v
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hot.life == closed || !b.Policy().decides(n) {
		return because(Outdated)
	}
	if b.pending.count() == 0 {
		if pot, ok := b.hot.lease.take(now, n); ok {
			return b.hot.decided(Granted, Local, b.hot.remaining(pot), 0)
		}
	}
	o := &b.needLease().outage
	mode := b.Policy().FailMode
	if mode == FailClosed {
		o.unbooked.Add(n)
		return b.hot.decided(Unavailable, Failover, b.hot.lease.live(now), 0)
	}
	b.setFleet(now, fleet)
	if mode == FailOpen {
		b.account(now) // books what was only counted, which was earlier
		b.bookOpened(now, n)
		return b.hot.decided(Open, Failover, b.hot.remaining(b.hot.lease.live(now)), 0)
	}
	b.account(now) // before the fallback decides: what Redis granted counts against it, and an outage refills nothing
	ok, left, retry := b.fallback.take(now, n)
	if !ok {
		o.unbooked.Add(n)
		b.hot.refused.Add(n)
		return b.hot.decided(FallbackSpent, Failover, left, retry)
	}
	o.booked += n
	b.owe(now, n, 0)
	return b.hot.decided(Fallback, Failover, b.fallbackLeft(now), 0)
}

// fallbackLeft is what remains for those who come next while Redis does not answer.
func (b *Bucket) fallbackLeft(now time.Duration) int64 {
	return min(b.hot.remaining(b.hot.lease.live(now)), int64(max(b.fallback.tokens(now), 0)))
}

// ForeseeFailMode decides like ByFailMode, but takes nothing and counts nothing.
func (b *Bucket) ForeseeFailMode(now time.Duration, n, fleet int64) Outcome {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hot.life == closed || !b.Policy().decides(n) {
		return because(Outdated)
	}
	held := b.hot.lease.live(now)
	if b.pending.count() == 0 && held >= n {
		return b.hot.decided(Granted, Local, b.hot.remaining(held), 0)
	}
	mode := b.Policy().FailMode
	if mode == FailOpen {
		return b.hot.decided(Open, Failover, b.hot.remaining(held), 0)
	}
	if mode == FailClosed {
		return b.hot.decided(Unavailable, Failover, held, 0)
	}
	b.setFleet(now, fleet)
	b.account(now)
	if b.fallback.has(now, n) {
		return b.hot.decided(Fallback, Failover, b.fallbackLeft(now), 0)
	}
	left, retry := b.fallback.lacks(now, n)
	return b.hot.decided(FallbackSpent, Failover, left, retry)
}

// FallbackNotSpent undoes the count of a refusal of n tokens by the fallback, because the caller
// waits and asks again. It reports false, and notes nothing, if the bucket is closed: look the key
// up again.
func (b *Bucket) FallbackNotSpent(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hot.life == closed {
		return false
	}
	if b.Policy().FailMode == FailLocal { // else the mode was changed since, and the owner has counted what was refused
		b.needLease().outage.unbooked.Add(-n) // the bucket may be new, if the one that refused was evicted
		b.hot.refused.Add(-n)
	}
	return true
}
