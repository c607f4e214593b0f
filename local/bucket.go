package local

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// never is a time that does not come.
const never = math.MaxInt64

// Bucket is the process' side of one bucket: its lease, and all it knows of the rest. Make it with [Bucket.Init]. All
// methods may be called concurrently.
type Bucket struct {
	policy *Policy

	// What the hot path reads. Only takers shrink the pot without the mutex; everything else here changes under it.
	pot      atomic.Int64 // tokens of the lease that nobody took
	deadline atomic.Int64 // ns since the base: from here on the pot is dead
	low      atomic.Int64 // low-water mark
	askAt    atomic.Int64 // ns since the base: no renewal before; never while a call is under way or queued
	level    atomic.Int64 // last seen in Redis
	cost     atomic.Int64 // the largest single cost of late, if above 1
	gen      atomic.Int64 // of the pot: rises whenever something has left for Redis or the pot was emptied
	inLine   atomic.Bool  // somebody waits: nobody overtakes

	mu      sync.Mutex
	line    line
	resets  []*Waiter
	queued  bool // in the owner's queue
	leasing bool // demand pays for a lease
	home    bool // idle: the lease is to go back
	extend  bool // in use, but about to end: the lease is to live on
	retired bool // evicted: everything is to go back, then the bucket closes
	probe   bool // a call is wanted that finds out whether Redis answers
	closed  bool
	late    bool // the call was late once and is made once more
	call    Call // under way; Seq 0 for none

	known    bool          // to Redis: a lease call was sent
	era      int64         // the pot's generation since when the lease id is the present one
	ack      int64         // highest seq of a lease call whose reply was accepted
	outUntil time.Duration // until then Redis may count tokens as out to this process
	grant    int64         // the last lease's

	denial   denial
	holdOff  time.Duration // after a short grant: denied until then
	backOff  time.Duration // after a failure: not asked until then
	failures int           // in a row

	demand    demand
	share     share
	debt      debt
	seenAt    time.Duration // when the call left that told the level
	usedAt    time.Duration // when spent was first seen at usedSpent
	usedSpent int64
	ledger    ledger
}

// Init makes b a new bucket of a policy.
func (b *Bucket) Init(p *Policy) {
	b.policy = p
	b.level.Store(p.Cap) // an absent bucket is full
}

// Take takes n ≥ 1 tokens from the pot, if it lives, holds them and nobody waits in line. left is what remains, here and
// by the last look at Redis; renew says that the owner should call [Bucket.Renew].
//
// now was read before: a token taken by a goroutine that slept in between counts as admitted at now, before the lease's
// end. The swap is a compare-and-swap because a dip made by Add and undone would be seen by a renewal.
func (b *Bucket) Take(now time.Duration, n int64) (left int64, ok, renew bool) {
	if n > 1 && n > b.cost.Load() {
		b.cost.Store(n) // racing stores lose at most a little of the low-water mark
	}
	if b.inLine.Load() {
		return 0, false, false
	}
	pot, ok := b.take(now, n)
	if !ok {
		return 0, false, false
	}
	return b.remaining(pot), true, b.renewable(now, pot)
}

// renewable reports that a pot is at its low-water mark, and that nothing speaks against asking for more.
func (b *Bucket) renewable(now time.Duration, pot int64) bool {
	return pot <= b.low.Load() && int64(now) >= b.askAt.Load()
}

func (b *Bucket) take(now time.Duration, n int64) (pot int64, ok bool) {
	for {
		v := b.pot.Load()
		if v < n || int64(now) >= b.deadline.Load() {
			return v, false
		}
		if b.pot.CompareAndSwap(v, v-n) {
			return v - n, true
		}
	}
}

// remaining adds what Redis was last seen to have to what is held here; an estimate in 0 … Cap.
func (b *Bucket) remaining(pot int64) int64 {
	return min(pot+max(b.level.Load(), 0), b.policy.Cap)
}

// live reports the tokens of the pot that may still be spent.
func (b *Bucket) live(now time.Duration) int64 {
	if int64(now) >= b.deadline.Load() {
		return 0
	}
	return b.pot.Load()
}

// Effect is what the owner has to do after a step.
type Effect struct {
	Send  bool          // put the bucket into its node's queue
	Check time.Duration // call Bucket.Check no later than then; 0 for never
	Done  bool          // the bucket is retired and owes nothing: Close it
}

// Renew asks for a renewal in the background, after a decision found the pot at its low-water mark. Only a decision may
// ask: renewals that replies ask for starve a hot process that moves about (utilisation 0.955 instead of 1).
func (b *Bucket) Renew(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || int64(now) < b.askAt.Load() {
		return Effect{}
	}
	return b.send()
}

// send puts the bucket into the queue, unless it is there or a call is under way.
func (b *Bucket) send() Effect {
	if b.queued || b.call.Seq != 0 {
		return Effect{}
	}
	b.queued = true
	b.askAt.Store(never)
	return Effect{Send: true}
}

// Ask decides over n tokens, 1 ≤ n ≤ Cap, when Take did not. Outcome Waiting puts w into line, until its verdict comes
// through w.C or [Bucket.Leave] takes it out; until is when the caller stops waiting.
func (b *Bucket) Ask(now time.Duration, n int64, until time.Duration, w *Waiter) (Verdict, Effect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return Verdict{Outcome: Gone}, Effect{}
	}
	need := n // from Redis
	if b.line.n == 0 {
		if pot, ok := b.take(now, n); ok {
			effect := Effect{}
			if b.renewable(now, pot) {
				effect = b.send()
			}
			return Verdict{Outcome: Admitted, Left: b.remaining(pot)}, effect
		}
		need -= b.live(now)
	}
	if now < b.holdOff || b.denial.holds(b.policy, now, need) {
		b.ledger.refused += n
		return b.refusal(now, need), Effect{}
	}
	if now < b.backOff {
		return Verdict{Outcome: Failed, Left: b.remaining(b.live(now))}, Effect{}
	}
	w.cost, w.until = n, until
	b.line.join(w)
	b.inLine.Store(true)
	return Verdict{Outcome: Waiting}, b.send()
}

// refusal is the verdict on a request that needs need more tokens than are held.
func (b *Bucket) refusal(now time.Duration, need int64) Verdict {
	return Verdict{
		Outcome: Refused,
		Left:    b.remaining(b.live(now)),
		Retry:   max(b.denial.retry(b.policy, now, need), b.holdOff-now),
	}
}

// Leave takes w out of line because its caller gives up. It reports false when the verdict is in w.C already.
func (b *Bucket) Leave(w *Waiter) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.in != &b.line {
		return false
	}
	b.line.leave(w)
	b.inLine.Store(b.line.n > 0)
	return true
}

// plenty, as serve's level, refuses nobody.
const plenty = math.MaxInt64

// serve gives tokens of the pot to those in line, first come, first served, and refuses those who need more than the
// level that Redis is known to have. The others stay in line.
func (b *Bucket) serve(now time.Duration, level int64) {
	for w := b.line.first; w != nil; {
		next := w.next
		if pot, ok := b.take(now, w.cost); ok {
			b.line.end(w, Verdict{Outcome: Admitted, Left: b.remaining(pot)})
		} else if need := w.cost - b.live(now); need > level {
			b.ledger.refused += w.cost
			b.line.end(w, b.refusal(now, need))
		} else if level == plenty {
			break
		}
		w = next
	}
	b.inLine.Store(b.line.n > 0)
}

// end gives everybody in line whom the pot cannot serve the same verdict.
func (b *Bucket) end(now time.Duration, v Verdict) {
	for w := b.line.first; w != nil; w = b.line.first {
		if pot, ok := b.take(now, w.cost); ok {
			b.line.end(w, Verdict{Outcome: Admitted, Left: b.remaining(pot)})
		} else {
			b.line.end(w, v)
		}
	}
	b.inLine.Store(false)
}

// Reset asks for the bucket to be filled to its room; the verdict (Admitted: done, Failed, Gone) comes through w.C.
func (b *Bucket) Reset(w *Waiter) (Verdict, Effect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return Verdict{Outcome: Gone}, Effect{}
	}
	b.resets = append(b.resets, w)
	return Verdict{Outcome: Waiting}, b.send()
}
