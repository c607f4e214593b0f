package local

import (
	"math"
	"sync/atomic"
	"time"
)

// outage counts what the fail mode decided while Redis did not answer, in tokens.
//
// Invariant: settled ≤ what was ever booked and owed. Each admitted token is in exactly one of unbooked and booked.
type outage struct {
	// unbooked is, by fail mode, what fail-open admitted since the last booking, what fail-closed refused, or what the
	// fallback refused. Deciders add to it without the mutex.
	unbooked atomic.Int64
	bookAt   atomic.Int64 // ns since the base: until then fail-open only counts. What it counted was admitted by then

	booked  int64 // admitted, and charged to the fallback and the debt
	settled int64 // of the debt, charged to the bucket or forgiven by it
	debt    debt
}

// bookDelay is how long fail-open may only count, so that most decisions need no lock. It is shorter than anything that
// a fallback or a debt is compared with.
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

// Fallback decides over n tokens, 1 ≤ n ≤ Cap, by the fail mode, because Redis does not answer. fleet is the number of
// processes that share the limit. In every mode a lease is spent first.
func (b *Bucket) Fallback(now time.Duration, n, fleet int64) Verdict {
	if v, ok := b.TryFallback(now, n); ok {
		b.CountFallback(n)
		return v
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == closed || !b.Policy().decides(n) {
		return Verdict{Outcome: Outdated}
	}
	if b.pending.count() == 0 {
		if pot, ok := b.lease.take(now, n); ok {
			return b.admits(b.remaining(pot))
		}
	}
	o := &b.needLease().outage
	mode := b.Policy().FailMode
	if mode == FailClosed {
		o.unbooked.Add(n)
		return Verdict{Outcome: Failed, Left: b.lease.live(now)}
	}
	b.setFleet(now, fleet)
	if mode == FailOpen {
		b.account(now) // books what was only counted, which was earlier
		b.bookOpened(now, n)
		return Verdict{Outcome: Opened, Left: b.remaining(b.lease.live(now))}
	}
	b.account(now) // before the fallback decides: what Redis granted counts against it, and an outage refills nothing
	ok, left, retry := b.fallback.take(now, n)
	if !ok {
		o.unbooked.Add(n)
		b.refused.Add(n)
		return Verdict{Outcome: FallbackSpent, Left: left, Retry: retry}
	}
	o.booked += n
	b.owe(now, n, 0)
	return Verdict{Outcome: Fallback, Left: b.remaining(b.lease.live(now))}
}

// ForeseeFallback decides like Fallback, but takes nothing and counts nothing.
func (b *Bucket) ForeseeFallback(now time.Duration, n, fleet int64) Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == closed || !b.Policy().decides(n) {
		return Verdict{Outcome: Outdated}
	}
	held := b.lease.live(now)
	if b.pending.count() == 0 && held >= n {
		return Verdict{Outcome: Admitted, Left: b.remaining(held)}
	}
	mode := b.Policy().FailMode
	if mode == FailOpen {
		return Verdict{Outcome: Opened, Left: b.remaining(held)}
	}
	if mode == FailClosed {
		return Verdict{Outcome: Failed, Left: held}
	}
	b.setFleet(now, fleet)
	b.account(now)
	if b.fallback.has(now, n) {
		return Verdict{Outcome: Fallback, Left: b.remaining(held)}
	}
	left, retry := b.fallback.lacks(now, n)
	return Verdict{Outcome: FallbackSpent, Left: left, Retry: retry}
}

// FallbackNotSpent takes back that the fallback refused n tokens, because the caller waits and asks again. It reports
// false, and notes nothing, if the bucket is closed: look the key up again.
func (b *Bucket) FallbackNotSpent(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == closed {
		return false
	}
	if b.Policy().FailMode == FailLocal { // else the mode was changed since, and the owner has counted what was refused
		b.needLease().outage.unbooked.Add(-n) // the bucket may be new, if the one that refused was evicted
		b.refused.Add(-n)
	}
	return true
}

// bookOpened charges fallback and debt with tokens that fail-open admitted at a time.
func (b *Bucket) bookOpened(at time.Duration, opened int64) {
	if opened <= 0 {
		return
	}
	b.lease.outage.booked += opened
	if b.freezes() { // a window carries nothing over
		b.fallback.debit(at, opened)
	} else {
		b.fallback.owe(at, opened, b.Policy(), int64(b.view.fleet))
	}
	b.owe(at, opened, 0)
}

// TryFallback is Fallback for most of the decisions that only have to be counted. It takes no lock. It reports false if
// the caller needs Fallback. The caller counts the decision afterwards, with [Bucket.CountFallback].
func (h *hot) TryFallback(now time.Duration, n int64) (Verdict, bool) {
	mode := h.Policy().FailMode
	if mode == FailLocal || !h.ready.Load() {
		return Verdict{}, false
	}
	l := h.lease
	if mode == FailOpen && int64(now) >= l.outage.bookAt.Load() {
		return Verdict{}, false
	}
	held := l.pot.live(now)
	if held >= n { // a lease is spent first
		return Verdict{}, false
	}
	if mode == FailClosed {
		return Verdict{Outcome: Failed, Left: held}, true
	}
	return Verdict{Outcome: Opened, Left: h.remaining(held)}, true
}

// CountFallback counts n tokens that TryFallback decided over. [Bucket.CountRefused] says why that is a step of its
// own.
func (h *hot) CountFallback(n int64) { h.lease.outage.unbooked.Add(n) }

// setFleet says how many processes share the limit, ≥ 1.
func (b *Bucket) setFleet(now time.Duration, fleet int64) {
	if n := int32(min(max(fleet, 1), math.MaxInt32)); b.view.fleet != n {
		if b.view.fleet != 0 {
			b.account(now) // by the fallback that there was
		}
		b.fallback.resize(b.Policy(), now, int64(n), b.view.fleet == 0)
		if b.view.fleet == 0 {
			if p := b.Policy(); p.Spent != nil { // what the key had used before it was evicted
				b.fallback.drain(now, p.Spent.of(b.ID()))
			}
		}
		b.view.fleet = n
	}
}
