package local

import (
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Counting is how Redis counts for a policy, as far as it matters here.
type Counting uint8

// The ways to count.
const (
	Refills Counting = iota // a level that rises with time: one token bucket
	Counts                  // windows: what is refused stays so until Redis' retry time; a refund and a debt name their instants
	Levels                  // several token buckets: like Counts, but that a debt is owed whenever it was made
	Logs                    // like Counts, and never leased: every direct take is an entry that can be settled
)

// Stamp is the instant at which Redis counted tokens, on the bucket's own clock: whoever gives them back names it.
type Stamp struct {
	At, Epoch int64
	cost      int64 // of a log's entry, as it should be
	owed      int64 // tokens of it that are given back and not settled
}

// windowed is what a bucket knows beside the rest when its policy does not just refill.
type windowState struct {
	stamp atomic.Pointer[Stamp] // of the last accepted reply: the tokens in the pot were counted then or later

	// What the last accepted reply said, for whoever is told of a decision: without the mutex, for most are made without it.
	clearAt  atomic.Int64  // ns since the base: nothing that it knew of counts any more; 0 before the first
	tightest atomic.Uint32 // the limit, from 1, that has the least left; 0 before the first
	refuser  atomic.Uint32 // the one that the last refusal waits for longest; 0 before the first

	counts time.Duration // until then something counts for certain, but for what others give back
	edge   bool          // the lease ends with its window: no call prolongs it

	refund *Stamp   // the oldest of what is to be refunded: too old a stamp gives back no more than is counted there
	settle []*Stamp // entries that cost less than the log has them

	admitted      time.Duration // alone, the last time
	frozen        int64         // debt that was reported and not accepted: it is repeated as it is, so that repeating does no harm
	frozenCertain int64         // part of it
	since         int64         // server time of its admissions
}

// windowed is nil for a policy that just refills.
func (b *Bucket) windows() *windowState {
	if d := b.denied.Load(); d != nil {
		return d.windows
	}
	return nil
}

// Told reports what Redis said last of a policy that does not just refill: which of its limits, from 1, refused last, or else
// has the least left, and when nothing that was known counts any more. Zeros before it said anything. It takes no lock.
func (b *Bucket) Told(refused bool) (which uint8, clear time.Duration) {
	d := b.denied.Load()
	if d == nil || d.windows == nil {
		return 0, 0
	}
	which = uint8(d.windows.tightest.Load())
	if refused {
		which = uint8(d.windows.refuser.Load())
	}
	return which, time.Duration(d.windows.clearAt.Load())
}

// StampOf reports what tokens that are taken now were counted by, or earlier; nil for a policy that refills. It is to be read
// before they are taken.
func (b *Bucket) StampOf() *Stamp {
	if w := b.windows(); w != nil {
		return w.stamp.Load()
	}
	return nil
}

// admits is the verdict on a request that was admitted from what Redis granted.
func (b *Bucket) admits(left int64) Verdict {
	return Verdict{Outcome: Admitted, Left: left, Stamp: b.StampOf()}
}

// stamped notes what a reply says of when its tokens were counted, and until when.
func (b *Bucket) stamped(c Call, now time.Duration, r lua.Reply) {
	w := b.windows()
	if w == nil {
		return
	}
	w.clearAt.Store(int64(now + micros(r.Reset)))
	if r.Grant < c.Want {
		w.refuser.Store(uint32(r.Which))
	}
	if r.Grant > 0 || c.Want == 0 {
		w.tightest.Store(uint32(r.Which))
	}
	if r.Stamp > 0 {
		w.stamp.Store(&Stamp{At: r.Stamp, Epoch: r.Epoch, cost: r.Grant})
	}
	if c.Debt > 0 {
		w.frozen, w.frozenCertain = 0, 0
	}
	if s := c.settles; s != nil {
		b.ledger.refundAnswered(c.settledNow, r)
		if s.owed -= c.settledNow; s.owed == 0 {
			w.settle = w.settle[1:]
		}
	}
}

// lasts notes until when something counts, by a reply in a bucket of an epoch: what was granted, until nothing does, and what
// refuses, until it does not. How long the rest counts the reply tells at the latest, which is no help here. A refused
// direct take says nothing: it wrote nothing, and if the key does not know its limits, it may end sooner with those of others.
func (w *windowState) lasts(c Call, r lua.Reply, epoch int64) {
	if w == nil {
		return
	}
	if c.Ret+c.Refund+c.settledNow > 0 || c.resets > 0 || r.Epoch != epoch {
		w.counts = 0
	}
	switch {
	case r.Grant > 0:
		w.counts = max(w.counts, c.sent+micros(r.Reset))
	case c.named() && c.Want > 0 && r.Retry > 0 && micros(r.Retry) < never-c.sent:
		w.counts = max(w.counts, c.sent+micros(r.Retry))
	}
}

// freezes reports whether a debt that was reported stays as it was until it is accepted: it counts where it was made.
func (b *Bucket) freezes() bool { return b.windows() != nil && b.Policy().Counting != Levels }

// freeze makes the debt that a call reports one that stays as it is until it is accepted.
func (b *Bucket) freeze(now time.Duration, server int64) (debt, sure, since int64) {
	w := b.windows()
	if w.frozen == 0 && b.debt.admitted > 0 {
		w.frozen = min(b.debt.admitted, maxDebt)
		w.frozenCertain = min(b.debt.certain, w.frozen)
		w.since = max(server-(now-min(w.admitted, now)).Microseconds(), 1)
	}
	return w.frozen, w.frozenCertain, w.since
}

// owe notes when tokens were admitted that are to be charged.
func (b *Bucket) owe(now time.Duration) {
	if w := b.windows(); w != nil {
		w.admitted = max(w.admitted, now)
	}
}

// giveBackStamped prepares a refund of n tokens that were counted at a stamp.
func (b *Bucket) giveBackStamped(n int64, s *Stamp) {
	w := b.windows()
	switch {
	case w == nil:
	case s == nil: // nothing tells where they count
		b.ledger.burnt += n
		return
	case b.Policy().Counting == Logs:
		if s.cost -= n; s.owed == 0 {
			w.settle = append(w.settle, s)
		}
		s.owed += n
	case w.refund == nil:
		w.refund = s
	case s.Epoch != w.refund.Epoch: // a call names one bucket, and one that was made anew owes nothing of the old one's
		b.ledger.burnt += n
		return
	case s.At < w.refund.At:
		w.refund = s
	}
	b.ledger.toRefund += n
}

// forget drops what was to be refunded or settled.
func (w *windowState) forget() {
	if w == nil {
		return
	}
	for _, s := range w.settle {
		s.owed = 0
	}
	w.refund, w.settle = nil, nil
}

// composeLog is compose for a log: every call is a direct take, or none, with what there is to settle.
func (b *Bucket) composeLog(now time.Duration, c Conditions) (Call, bool) {
	p, w := b.Policy(), b.windows()
	period := b.size(c.Trip).period
	b.leasing = false
	call := Call{Call: p.Call, Direct: true, ttl: p.ttl(period), wanted: now + p.Timeout, period: period}
	ok := false
	if b.pending != nil && len(b.resets) > 0 && c.Clock {
		call.Reset, call.resets, ok = c.Server, len(b.resets), true
	}
	if a := b.asking(now + min(c.Trip, p.Budget/2)); a.n > 0 {
		call.Min, call.Want, call.wanted, ok = a.first, b.withMore(a.cost), a.last, true
		call.forWaiters = a.allWait
	}
	if len(w.settle) > 0 {
		s := w.settle[0]
		call.settles, call.To, call.settledNow, ok = s, s.cost, s.owed, true
	}
	if c.Clock && b.leaseState != nil && (b.debt.certain > 0 || b.debt.admitted > 0 && (ok || b.retired || b.probe == probeNow)) {
		call.Debt, call.certain, call.Since = b.freeze(now, c.Server)
		ok = true
	}
	probe := b.probe == probeNow
	b.probe, b.duty = probeNot, nothing
	if c.Clock && (probe || call.Debt > 0 || call.Reset > 0) {
		call.Lease = c.Lease
	}
	return call, ok || probe
}
