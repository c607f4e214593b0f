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
//
// It is small, because a process may keep a million. What only some of them need comes with the need: a [leaseState] with the
// first lease or debt, an [pending] while somebody waits or a call is under way, a [denial] with a refusal.
type Bucket struct {
	policy atomic.Pointer[Policy] // changed under the mutex
	key    string

	// What the hot path reads: together, and on a cache line that only slower paths write.
	*leaseState              // nil before it is needed, then the same for ever
	level       atomic.Int64 // last seen in Redis
	ready       atomic.Bool  // there is a stake, and nobody waits in line: takers may look at the pot

	queued    bool      // in the owner's queue
	leasing   bool      // demand pays for a lease
	duty      duty      // what is due that nobody asked for
	retired   bool      // evicted: everything is to go back, then the bucket closes
	closed    bool      //
	probe     probe     // whether a call is wanted that finds out if Redis answers, or tells it of another limit
	failures  uint8     // in a row
	certainty certainty // what the level last seen is worth
	fleet     int32     // processes that the share is a part for; 0 before it is known

	mu sync.Mutex // guards what is not atomic
	*pending
	denied atomic.Pointer[denial] // nil for none

	seenAt time.Duration // when the call left that told the level
	seen   int64         // the bucket's overflow, read when nothing was owed
	epoch  int64         // of the bucket in which it was read; 0 never

	demand  demand
	share   share
	granted int64        // tokens by Redis, to the pot or directly
	refused atomic.Int64 // asked for and refused by the limit, or while the rule is Blocked by that
	debited int64        // part of what was spent that the share was charged with
}

// due is what a bucket has to do though nobody asks for anything.
type duty uint8

const (
	nothing   duty = iota
	returning      // idle: the lease is to go back
	extending      // in use, but about to end: the lease is to live on
)

// sight is what the level that Redis was last seen to have says of how much it was at most; see [Bucket.Outlives].
type certainty uint8

const (
	roundedDown certainty = iota // less than one token more
	exact                        // so much
	doubtful                     // nothing
)

// Init makes b the new bucket of a key of a policy. It keeps the key.
func (b *Bucket) Init(p *Policy, key string) {
	b.policy.Store(p)
	b.key = key
	if p.Counting != Refills {
		b.denied.Store(&denial{windows: new(windowState)})
	}
	b.level.Store(p.Cap) // an absent bucket is full
}

// ID is the bucket's name.
func (b *Bucket) ID() ID { return ID{b.Policy().Number, b.key} }

// Is reports whether id is the bucket's name.
func (b *Bucket) Is(id ID) bool { return b.key == id.Key && b.Policy().Number == id.Policy }

// Policy is the bucket's, at present: see [Bucket.SetPolicy].
func (b *Bucket) Policy() *Policy { return b.policy.Load() }

// Take takes n ≥ 1 tokens from the pot, if it lives, holds them and nobody waits in line. left is what remains, here and
// by the last look at Redis; renew says that the owner should call [Bucket.Renew].
//
// now was read before: a token taken by a goroutine that slept in between counts as admitted at now, before the lease's
// end. The swap is a compare-and-swap because a dip made by Add and undone would be seen by a renewal.
func (b *Bucket) Take(now time.Duration, n int64) (left int64, ok, renew bool) {
	if !b.ready.Load() {
		return 0, false, false
	}
	if n > 1 && n > b.maxCost.Load() {
		b.maxCost.Store(n) // racing stores lose at most a little of the low-water mark
	}
	pot, ok := b.take(now, n)
	if !ok {
		return 0, false, false
	}
	return b.remaining(pot), true, b.renewable(now, pot)
}

// Holds reports whether Take would find n tokens.
func (b *Bucket) Holds(now time.Duration, n int64) bool { return b.ready.Load() && b.live(now) >= n }

// renewable reports that a pot is at its low-water mark, and that nothing speaks against asking for more.
func (b *Bucket) renewable(now time.Duration, pot int64) bool {
	return pot <= b.low.Load() && int64(now) >= b.renewAt.Load()
}

// remaining adds what Redis was last seen to have to what is held here; an estimate in 0 … Cap.
func (b *Bucket) remaining(pot int64) int64 {
	return min(pot+max(b.level.Load(), 0), b.Policy().Cap)
}

// Refuse answers a request for n tokens that Take did not have, if it is known to be refused. Like Take it has no lock: a key
// over its limit is often the one that is asked for most. The caller counts it afterwards, with [Bucket.CountRefused].
func (b *Bucket) Refuse(now time.Duration, n int64) (Verdict, bool) {
	d := b.denied.Load()
	if d == nil {
		return Verdict{}, false
	}
	held := int64(0)
	if b.ready.Load() { // after the denial: what came with it, since Take looked, is not refused
		held = b.live(now)
	}
	if n == 1 && held == 0 && now < d.oneUntil {
		return Verdict{Outcome: Refused, Left: b.remaining(0), Retry: max(d.oneAt-now, time.Microsecond)}, true
	}
	retry, refused := d.refuses(now, n-held)
	if !refused || n <= held {
		return Verdict{}, false
	}
	return Verdict{Outcome: Refused, Left: b.remaining(held), Retry: retry}, true
}

// CountRefused counts n tokens that Refuse refused, or the owner because the rule is Blocked. That is a step of its own, for
// after the answer is written: an atomic addition waits for all writes before it, and who reads an answer that was written a
// moment ago waits for them too. One wait instead of two is a tenth of a decision.
func (b *Bucket) CountRefused(n int64) { b.refused.Add(n) }

// refuse refuses w, and counts that unless w asks again.
func (b *Bucket) refuse(w *Waiter, held int64, retry time.Duration) Verdict {
	if !w.Patient {
		b.refused.Add(w.cost)
	}
	return Verdict{Outcome: Refused, Left: b.remaining(held), Retry: retry}
}

// Effect is what the owner has to do after a step.
type Effect struct {
	Send  bool          // put the bucket into its node's queue
	Check time.Duration // call Bucket.Check no later than then; 0 for never
	Done  bool          // the bucket is retired and owes nothing: Close it
	Tell  bool          // call Bucket.Check soon, for Redis is to hear of another limit: see SetPolicy
}

// Renew asks for a renewal in the background, after a decision found the pot at its low-water mark. Only a decision may
// ask: renewals that replies ask for starve a hot process that moves about (utilisation 0.955 instead of 1).
func (b *Bucket) Renew(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.leaseState == nil || int64(now) < b.renewAt.Load() {
		return Effect{}
	}
	return b.send()
}

// send puts the bucket into the queue, unless it is there or a call is under way.
func (b *Bucket) send() Effect {
	if b.queued || b.calling() {
		return Effect{}
	}
	b.queued = true
	b.askFrom(never)
	return Effect{Send: true}
}

// Ask decides over n tokens, 1 ≤ n ≤ Cap, when Take and Refuse did not. Outcome Waiting puts w into line, until its verdict
// comes through w.C or [Bucket.Leave] takes it out; until is when the caller stops waiting.
func (b *Bucket) Ask(now time.Duration, n int64, until time.Duration, w *Waiter) (Verdict, Effect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || !b.decides(n) {
		return Verdict{Outcome: Gone}, Effect{}
	}
	need := n // from Redis
	if b.waiting() == 0 {
		if pot, ok := b.take(now, n); ok {
			effect := Effect{}
			if b.renewable(now, pot) {
				effect = b.send()
			}
			return b.admits(b.remaining(pot)), effect
		}
		need -= b.live(now)
	}
	w.cost, w.until = n, until
	w.Came, w.Short = 0, false
	if retry, refused := w.refusal(b.denied.Load(), now, need); refused {
		return b.refuse(w, b.live(now), retry), Effect{}
	}
	if b.leaseState != nil && now < b.backOff {
		return Verdict{Outcome: Failed, Left: b.remaining(b.live(now))}, Effect{}
	}
	b.needPending().waiters.join(w)
	b.ready.Store(false)
	return Verdict{Outcome: Waiting}, b.send()
}

// Leave takes w out of line because its caller gives up. It reports false when the verdict is in w.C already.
func (b *Bucket) Leave(w *Waiter) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pending == nil || w.in != &b.waiters {
		return false
	}
	b.waiters.leave(w)
	b.conclude()
	return true
}

// plenty, as serve's level, refuses nobody.
const unlimited = math.MaxInt64

// serve gives tokens of the pot to those in line, first come, first served, and refuses those who need more than the
// level that Redis is known to have. The others stay in line.
func (b *Bucket) serve(now time.Duration, level int64) {
	if b.pending == nil {
		return
	}
	for w := b.waiters.first; w != nil; {
		next := w.next
		if pot, ok := b.take(now, w.cost); ok {
			w.Short = level != unlimited
			b.waiters.end(w, b.admits(b.remaining(pot)))
		} else if need := w.cost - b.live(now); need > level {
			retry, _ := w.refusal(b.denied.Load(), now, need)
			b.waiters.end(w, b.refuse(w, b.live(now), retry))
		} else if level == unlimited {
			break
		}
		w = next
	}
	b.conclude()
}

// end gives everybody in line whom the pot cannot serve the same verdict.
func (b *Bucket) end(now time.Duration, v Verdict) {
	if b.pending == nil {
		return
	}
	for w := b.waiters.first; w != nil; w = b.waiters.first {
		if pot, ok := b.take(now, w.cost); ok {
			b.waiters.end(w, b.admits(b.remaining(pot)))
		} else {
			b.waiters.end(w, v)
		}
	}
	b.conclude()
}

// Reset asks for the bucket to be filled to its room; the verdict (Admitted: done, Failed, Gone) comes through w.C.
func (b *Bucket) Reset(w *Waiter) (Verdict, Effect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || !b.byLimit() {
		return Verdict{Outcome: Gone}, Effect{}
	}
	e := b.needPending()
	e.resets = append(e.resets, w)
	return Verdict{Outcome: Waiting}, b.send()
}
