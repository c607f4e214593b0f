package local

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Hot is the part of a bucket that decisions read without its mutex. A decision by a lease, a known
// refusal or the fail mode reads its first 64 bytes, which only slower paths write, and adds to a
// counter.
//
// What is not atomic here is guarded by the mutex. It stands here because there is room beside
// ready.
type Hot struct {
	policy atomic.Pointer[Policy] // changed under the mutex
	key    string                 // never changes
	lease  *leaseState            // nil before the first lease, fallback or debt. Set once, before ready is

	ready   atomic.Bool // takers may look at the pot. Invariant: then there is a lease state, and nobody waits or has reserved
	queued  bool        // in the owner's queue
	leasing leasing
	life    life
	upkeep  upkeep

	denied denials // a nil one denies nothing
	view   view

	refused atomic.Int64 // tokens refused by the limit, or while the rule is Blocked by that
}

// leasing says whether demand pays for a lease. Above leased it does, at a node that answers when
// the callers have left, and the difference to leased is the round trip in farSteps.
type leasing uint8

const (
	direct leasing = iota
	leased
)

// farStep is the unit of the round trip in leasing, which is rounded up. It can tell 2 s, longer
// than any call takes.
const farStep = 8 * time.Millisecond

// leasedFar is the leasing at a node whose round trip is so long.
func leasedFar(trip time.Duration) leasing {
	return leased + leasing(min(trip/farStep+1, math.MaxUint8-1))
}

// trip is the round trip to a node that answers when those who asked have left, or 0.
func (l leasing) trip() time.Duration { return time.Duration(max(l, leased)-leased) * farStep }

// lasting is the period by which a lease that nobody renews is idle, if it is to last for period
// while it is renewed.
func (l leasing) lasting(period time.Duration) time.Duration {
	if far := l.trip(); far > 0 { // until more can be there
		period = max(period, farPeriod) + far
	}
	return period
}

// life is how far a bucket has come. Invariant: once it is closed it stays so, and holds nothing.
type life uint8

const (
	inUse   life = iota
	retired      // evicted: everything is to go back, then it closes
	closed       // it answers Outdated
)

// upkeep is what is due for a lease though nobody asks for anything.
type upkeep uint8

const (
	nothing   upkeep = iota
	returning        // idle: it is to go back
	extending        // in use but about to end: it is to be prolonged
	reporting        // what is spent of it is to be told
)

// retired reports whether the bucket is on its way out, or closed.
func (h *Hot) retired() bool { return h.life >= retired }

// ID is the name of the bucket.
func (h *Hot) ID() ID { return ID{h.Policy().Number, h.key} }

// Is reports whether id is the name of the bucket.
func (h *Hot) Is(id ID) bool { return h.key == id.Key && h.Policy().Number == id.Policy }

// Policy is the policy of the bucket at present; see [Bucket.SetPolicy].
func (h *Hot) Policy() *Policy { return h.policy.Load() }

// Take takes n ≥ 1 tokens from the pot. It reports false if the lease is over or holds fewer, or if
// somebody waits. left is what remains, here and in Redis as last seen. renew says that the owner
// should call [Bucket.Renew].
//
// The caller has read now before. A token that is taken by a goroutine that slept in between counts
// as admitted at now, before the lease's end.
func (h *Hot) Take(now time.Duration, n int64) (left int64, ok, renew bool) {
	if !h.ready.Load() {
		return 0, false, false
	}
	l := h.lease
	if n > 1 {
		l.maxCost.note(n)
	}
	held, ok := l.pot.take(now, n)
	if !ok {
		return 0, false, false
	}
	return h.remaining(held), true, l.pot.renewable(now, held)
}

// Foresee is Take, but takes nothing: left is what remains before n tokens are taken.
func (h *Hot) Foresee(now time.Duration, n int64) (left int64, ok bool) {
	held := h.held(now)
	return h.remaining(held), held >= n
}

// Holds reports whether Take would find n tokens.
func (h *Hot) Holds(now time.Duration, n int64) bool { return h.held(now) >= n }

// held reports the tokens that takers find in the pot. It takes no lock.
func (h *Hot) held(now time.Duration) int64 {
	if !h.ready.Load() {
		return 0
	}
	return h.lease.pot.live(now)
}

// Refuse answers a request for n tokens that Take did not have, if it is known to be refused. Like
// Take it takes no lock, because a key over its limit is often the one that is asked for most. The
// caller counts the refusal afterwards, with [Hot.CountRefused].
func (h *Hot) Refuse(now time.Duration, n int64) (Outcome, bool) {
	d := h.denied.Load()
	if d == nil {
		return Outcome{}, false
	}
	held := h.held(now) // after the denial: what came with it, since Take looked, is not refused
	if n == 1 && held == 0 && now < d.oneUntil {
		return h.decided(Limited, Local, h.lacking(0), max(d.oneAt-now, time.Microsecond)), true
	}
	retry, refused := d.refuses(now, n-held)
	if !refused || n <= held {
		return Outcome{}, false
	}
	return h.decided(Limited, Local, h.refusedLeft(d, now, held), retry), true
}

// CountRefused counts n tokens that Refuse refused, or the owner because the rule is Blocked. It is
// a step of its own, to be taken after the answer is written: an atomic addition waits for all
// writes before it, and so does a caller that reads an answer written a moment ago. To wait once
// and not twice saves a tenth of a decision.
func (h *Hot) CountRefused(n int64) { h.refused.Add(n) }

// Denied reports whether a request for one token is known to be refused now, and for how long. It
// takes no lock.
func (h *Hot) Denied(now time.Duration) (retry time.Duration, denied bool) {
	retry, denied = h.denied.Load().refuses(now, 1)
	return retry, denied && h.held(now) == 0
}

// RefuseWaiter is Refuse for a caller that waits; see [Waiter.AskAgain].
func (h *Hot) RefuseWaiter(now time.Duration, n int64) (Outcome, bool) {
	d, held := h.denied.Load(), h.held(now)
	retry, refused := d.lacks(now, n-held)
	if !refused || n <= held || d.reserves() { // what the pot holds for the caller, takers do not see
		return Outcome{}, false
	}
	return h.decided(Limited, Local, h.refusedLeft(d, now, held), retry), true
}

// Reserved reports how many tokens are kept for callers who wait. It takes no lock.
func (h *Hot) Reserved() int64 {
	if d := h.denied.Load(); d != nil {
		return d.reserved
	}
	return 0
}

// A caller that waits for tokens and asks again is another kind of request. It sets no hold-off and
// minds none: it asks when the tokens may be there, for those behind it too. It is counted when it
// is served.

// maxAskers is how many processes may ask for each token that they wait for.
const maxAskers = 3

// Yield reports how long a process that waits should leave the tokens to the others that lease from
// the bucket, beyond the time when the next token can be there. active is how many leases are
// active; see [Waiter.Active]. A few processes only keep out of step, so that none is always the
// second. If there are more, each asks for its part of the refill: calls per token stay few,
// whatever their number. It takes no lock.
func (h *Hot) Yield(active int64) time.Duration {
	p := h.Policy()
	switch {
	case !p.Call.Algorithm.Has(lua.OneLevel) || active <= 1 || h.view.level.Load() >= active:
		return 0
	case active <= maxAskers:
		return p.between(0, 0.25, p.wait(1))
	}
	return p.between(0.5, 1.5, p.wait(float64(active-maxAskers)))
}

// TryFailMode is [Bucket.ByFailMode] without the lock, for modes that only count. It reports false
// if the caller needs that. The caller counts the decision afterwards, with [Hot.CountFailMode].
func (h *Hot) TryFailMode(now time.Duration, n int64) (Outcome, bool) {
	mode := h.Policy().FailMode
	if mode != FailOpen && mode != FailClosed || !h.ready.Load() {
		return Outcome{}, false
	}
	l := h.lease
	if mode == FailOpen && int64(now) >= l.outage.bookAt.Load() {
		return Outcome{}, false
	}
	held := l.pot.live(now)
	if held >= n { // a lease is spent first
		return Outcome{}, false
	}
	if mode == FailClosed {
		return h.decided(Unavailable, Failover, held, 0), true
	}
	return h.decided(Open, Failover, h.remaining(held), 0), true
}

// CountFailMode counts n tokens that TryFailMode decided over. [Hot.CountRefused] says why that is
// a step of its own.
func (h *Hot) CountFailMode(n int64) { h.lease.outage.unbooked.Add(n) }

// LastReport reports what Redis said last about a policy that does not just refill: which of its
// limits, from 1, refused last or else has the least left, and when nothing that was known counts
// any more. Before Redis said anything both are 0. It takes no lock.
func (h *Hot) LastReport(refused bool) (which uint8, clear time.Duration) {
	w := h.denied.windows()
	if w == nil {
		return 0, 0
	}
	which = uint8(w.tightest.Load())
	if refused {
		which = uint8(w.refuser.Load())
	}
	return which, time.Duration(w.clearAt.Load())
}

// LastStamp reports when tokens that are taken now were counted, or earlier. It is nil for a policy
// that refills. Read it before the tokens are taken.
func (h *Hot) LastStamp() *Stamp {
	if w := h.denied.windows(); w != nil {
		return w.stamp.Load()
	}
	return nil
}

// decided is an outcome by the bucket's policy.
func (h *Hot) decided(r Reason, t Tier, left int64, retry time.Duration) Outcome {
	return Decided(h.Policy(), r, t, left, retry)
}

// grant admits w from what Redis granted.
func (h *Hot) grant(w *Waiter, t Tier, left int64) Outcome {
	w.Stamp = h.LastStamp()
	return h.decided(Granted, t, left, 0)
}

// refuse refuses w, and counts that unless w asks again.
func (h *Hot) refuse(w *Waiter, t Tier, now, retry time.Duration) Outcome {
	if !w.AskAgain {
		h.refused.Add(w.cost)
	}
	return h.decided(Limited, t, h.refusedLeft(h.denied.Load(), now, h.lease.live(now)), retry)
}

// refusedLeft is what remains after a refusal by d: like remaining, but with the refill since the
// level was told, where that is known. A caller who can do with less asks for so much.
func (h *Hot) refusedLeft(d *denial, now time.Duration, held int64) int64 {
	if d == nil || d.nanos == 0 || now < d.at {
		return h.lacking(held)
	}
	most := h.Policy().Most()
	level := int64(math.Floor(min(d.level+float64(now-d.at)/d.nanos, float64(most))))
	if held > 0 {
		level = max(level, 0)
	}
	return min(held+level, most)
}

// lacking is remaining after a refusal: it is negative if Redis was last seen to be owed, and
// nothing is held here.
func (h *Hot) lacking(held int64) int64 {
	if held > 0 {
		return h.remaining(held)
	}
	return min(h.view.level.Load(), h.Policy().Most())
}

// remaining adds what Redis was last seen to have to what is held here. It is an estimate in 0 …
// Cap.
func (h *Hot) remaining(held int64) int64 {
	return min(held+max(h.view.level.Load(), 0), h.Policy().Most())
}

// levelAt is the level in Redis by the last reply and the refill since. The mutex is held.
func (h *Hot) levelAt(now time.Duration) int64 {
	return h.view.levelAt(now, h.Policy(), h.denied.windows())
}

// lives reports whether the bucket that Redis was last seen to have must still be there at now, and
// whether it is likely to be. Neither is known of another one than epoch: a refund names the bucket
// that it was taken from, which may be an earlier one. The mutex is held.
func (h *Hot) lives(now time.Duration, epoch int64) (surely, likely bool) {
	v := &h.view
	if h.life == closed || epoch != v.epoch {
		return false, false
	}
	p, w, charged := h.Policy(), h.denied.windows(), h.lease.orEmpty().outage.debt.certain
	return v.outlives(now, p, w, charged), v.likely(now, p, w, charged)
}

// owing reports what was admitted without Redis and is not settled. The mutex is held.
func (h *Hot) owing() int64 { return h.lease.owing(h.Policy().FailMode) }

// charged takes n tokens that were charged, and of which Redis has not heard, off what it was last
// seen to have. The mutex is held.
func (h *Hot) charged(now time.Duration, n int64) {
	if n == 0 {
		return
	}
	h.view.charge(now, n, h.Policy(), h.denied.windows())
	if d := h.denied.copy(); d.at > 0 {
		d.charge(h.Policy(), now, n)
		h.denied.put(&d)
	}
}

// forgive drops debt and refund of a retired bucket that could not be sent with its return. They
// are worth one try, or an outage would keep every evicted key, and a damaged key would stay for
// ever. The mutex is held.
func (h *Hot) forgive() {
	if h.retired() {
		h.lease.giveUp(h.Policy().FailMode, h.denied.windows())
	}
}

// freezes reports whether a debt counts where it was made. It stays as it was reported until it is
// accepted, so that repeating does no harm.
func (h *Hot) freezes() bool {
	return h.denied.windows() != nil && h.Policy().Call.Algorithm.Has(lua.Window)
}

// openPot lets takers at the pot if there is one, nobody waits and the limit decides. Else it keeps
// them off. The mutex is held.
func (h *Hot) openPot(waiting int) {
	byLimit := h.Policy().Rule == ByLimit
	h.ready.Store(h.lease != nil && waiting == 0 && byLimit && h.life != closed && !h.denied.Load().reserves())
}

// changeNumbers brings what is known of the level up to now by the old numbers, before p is in
// force. calling says that a call is under way. The mutex is held.
func (h *Hot) changeNumbers(now time.Duration, old, p *Policy, calling bool) {
	known := !old.Unset // else the old numbers are nobody's
	if p.Rule != ByLimit || known && p.sameLimits(old) {
		return
	}
	h.lease.lower(now, old, p)
	if p.Call.Algorithm.Has(lua.Window) { // no rate, so nothing came by the old one, and what is counted stays
		if known && p.Each == nil { // of several it is not known which one the level is of
			h.view.level.Add(p.Cap - old.Cap)
		}
		return
	}
	neverAsked := h.view.epoch == 0 && !h.queued && !calling
	full, level := neverAsked, h.view.level.Load()
	if known {
		full, level = h.full(now, calling), h.levelAt(now)
		h.view.at = now
	}
	if full { // an absent bucket is
		h.view.level.Store(p.Cap)
		return
	}
	h.view.level.Store(min(level, p.Cap))
	switch {
	case p.anySmaller(old):
		h.view.certainty |= outgrown
	case level >= old.Cap: // full by the old limit, as far as is known, so Redis may have forgotten it
		h.view.setCertainty(another)
	}
}

// full reports whether the bucket in Redis is full with nothing out, by all that is known here, and
// so as good as none.
func (h *Hot) full(now time.Duration, calling bool) bool {
	if h.view.certainty&outgrown != 0 || h.view.failures > 0 || h.queued || calling {
		return false
	}
	if h.lease.out(now) || h.lease.owes() {
		return false
	}
	return h.levelAt(now) >= h.Policy().Cap
}
