package local

import (
	"math"
	"sync/atomic"
	"time"
)

// hot is the part of a bucket that decisions read without its mutex. A decision by a lease, a known refusal or the fail
// mode reads its first 64 bytes, which only slower paths write, and adds to a counter.
//
// What is not atomic here is guarded by the mutex. It stands here because there is room beside ready.
type hot struct {
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

// leasing says whether demand pays for a lease. Above leased it does, at a node that answers when those who asked have
// left, and what is above tells the round trip.
type leasing uint8

const (
	direct leasing = iota
	leased
)

// farStep is the unit of the round trip in leasing, which is rounded up. It can tell 2 s, longer than any call takes.
const farStep = 8 * time.Millisecond

// leasedFar is the leasing at a node whose round trip is so long.
func leasedFar(trip time.Duration) leasing {
	return leased + leasing(min(trip/farStep+1, math.MaxUint8-1))
}

// trip is the round trip to a node that answers when those who asked have left, or 0.
func (l leasing) trip() time.Duration { return time.Duration(max(l, leased)-leased) * farStep }

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
func (h *hot) retired() bool { return h.life >= retired }

// ID is the name of the bucket.
func (h *hot) ID() ID { return ID{h.Policy().Number, h.key} }

// Is reports whether id is the name of the bucket.
func (h *hot) Is(id ID) bool { return h.key == id.Key && h.Policy().Number == id.Policy }

// Policy is the policy of the bucket at present; see [Bucket.SetPolicy].
func (h *hot) Policy() *Policy { return h.policy.Load() }

// Take takes n ≥ 1 tokens from the pot. It reports false if the lease is over or holds fewer, or if somebody waits.
// left is what remains, here and in Redis as last seen. renew says that the owner should call [Bucket.Renew].
//
// The caller has read now before. A token that is taken by a goroutine that slept in between counts as admitted at now,
// before the lease's end.
func (h *hot) Take(now time.Duration, n int64) (left int64, ok, renew bool) {
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
func (h *hot) Foresee(now time.Duration, n int64) (left int64, ok bool) {
	held := h.held(now)
	return h.remaining(held), held >= n
}

// Holds reports whether Take would find n tokens.
func (h *hot) Holds(now time.Duration, n int64) bool { return h.held(now) >= n }

// held reports the tokens that takers find in the pot. It takes no lock.
func (h *hot) held(now time.Duration) int64 {
	if !h.ready.Load() {
		return 0
	}
	return h.lease.pot.live(now)
}

// Refuse answers a request for n tokens that Take did not have, if it is known to be refused. Like Take it takes no
// lock, because a key over its limit is often the one that is asked for most. The caller counts the refusal afterwards,
// with [Bucket.CountRefused].
func (h *hot) Refuse(now time.Duration, n int64) (Verdict, bool) {
	d := h.denied.Load()
	if d == nil {
		return Verdict{}, false
	}
	held := h.held(now) // after the denial: what came with it, since Take looked, is not refused
	if n == 1 && held == 0 && now < d.oneUntil {
		return Verdict{Outcome: Refused, Left: h.lacking(0), Retry: max(d.oneAt-now, time.Microsecond)}, true
	}
	retry, refused := d.refuses(now, n-held)
	if !refused || n <= held {
		return Verdict{}, false
	}
	return Verdict{Outcome: Refused, Left: h.refusedLeft(d, now, held), Retry: retry}, true
}

// CountRefused counts n tokens that Refuse refused, or the owner because the rule is Blocked. It is a step of its own,
// for after the answer is written: an atomic addition waits for all writes before it, and whoever reads an answer that
// was written a moment ago waits for them too. One wait instead of two is a tenth of a decision.
func (h *hot) CountRefused(n int64) { h.refused.Add(n) }

// Denied reports whether a request for one token is known to be refused now, and for how long. It takes no lock.
func (h *hot) Denied(now time.Duration) (retry time.Duration, denied bool) {
	retry, denied = h.denied.Load().refuses(now, 1)
	return retry, denied && h.held(now) == 0
}

// refuse refuses w, and counts that unless w asks again.
func (h *hot) refuse(w *Waiter, now, retry time.Duration) Verdict {
	if !w.AskAgain {
		h.refused.Add(w.cost)
	}
	return Verdict{Outcome: Refused, Left: h.refusedLeft(h.denied.Load(), now, h.lease.live(now)), Retry: retry}
}

// refusedLeft is what remains after a refusal by d: like remaining, but with the refill since the level was told, where
// that is known. A caller who can do with less asks for so much.
func (h *hot) refusedLeft(d *denial, now time.Duration, held int64) int64 {
	if d == nil || d.nanos == 0 || now < d.at {
		return h.lacking(held)
	}
	most := h.Policy().Cap
	level := int64(math.Floor(min(d.level+float64(now-d.at)/d.nanos, float64(most))))
	if held > 0 {
		level = max(level, 0)
	}
	return min(held+level, most)
}

// lacking is remaining after a refusal: it is negative if Redis was last seen to be owed, and nothing is held here.
func (h *hot) lacking(held int64) int64 {
	if held > 0 {
		return h.remaining(held)
	}
	return min(h.view.level.Load(), h.Policy().Cap)
}

// remaining adds what Redis was last seen to have to what is held here. It is an estimate in 0 … Cap.
func (h *hot) remaining(held int64) int64 {
	return min(held+max(h.view.level.Load(), 0), h.Policy().Cap)
}

// levelAt is the level in Redis by the last reply and the refill since. The mutex is held.
func (h *hot) levelAt(now time.Duration) int64 {
	return h.view.levelAt(now, h.Policy(), h.denied.windows())
}

// owing reports what was admitted without Redis and is not settled. The mutex is held.
func (h *hot) owing() int64 { return h.lease.owing(h.Policy().FailMode) }

// openPot lets takers at the pot if there is one, nobody waits and the limit decides. Else it keeps them off. The mutex
// is held.
func (h *hot) openPot(waiting int) {
	byLimit := h.Policy().Rule == ByLimit
	h.ready.Store(h.lease != nil && waiting == 0 && byLimit && h.life != closed && !h.denied.Load().reserves())
}
