package local

import (
	"math"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// never is a time that does not come.
const never = math.MaxInt64

// Bucket is the process' side of one bucket: its lease, and what it knows of the bucket in Redis. Make it with
// [Bucket.Init]. All methods may be called concurrently.
//
// It is made of parts that each keep their own invariants, and is small, because a process may keep a million. What only
// some buckets need is allocated when it is needed: a lease state with the first lease or debt, a pending state while
// somebody waits or a call is under way, a denial with a refusal. Each of these may be nil, and its methods answer for
// that.
//
// It fills a size class of the allocator together with what internal/engine adds (240 of 256 bytes).
type Bucket struct {
	hot

	mu      sync.Mutex // guards what is not atomic, and what is in the lease state
	pending *pending   // nil while nobody waits and no call is under way

	demand   demand
	fallback fallback
	granted  int64 // tokens by Redis, to the pot or directly
}

// Init makes b the new bucket of a key of a policy. It keeps the key.
func (b *Bucket) Init(p *Policy, key string) {
	b.policy.Store(p)
	b.key = key
	if p.Call.Algorithm != lua.TokenBucket {
		b.denied.Store(&denial{windows: new(windowState)})
	}
	b.view.level.Store(p.Cap) // an absent bucket is full
}

// Effect is what the owner has to do after a step.
type Effect struct {
	Send  bool          // put the bucket into its node's queue
	Check time.Duration // call Bucket.Check no later than then; 0 for never
	Done  bool          // the bucket is retired and owes nothing: Cache.Forget it
}

// Ask decides over n tokens, 1 ≤ n ≤ Cap, when Take and Refuse did not. Outcome Waiting means that w waits, until its
// verdict comes through w.C or [Bucket.Leave] takes it out. until is when the caller stops waiting.
func (b *Bucket) Ask(now time.Duration, n int64, until time.Duration, w *Waiter) (Verdict, Effect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == closed || !b.Policy().decides(n) {
		return Verdict{Outcome: Outdated}, Effect{}
	}
	need := n // from Redis
	if b.pending.count() == 0 && (w.AskAgain || !b.denied.Load().reserves()) {
		if held, ok := b.lease.take(now, n); ok {
			effect := Effect{}
			if b.lease.pot.renewable(now, held) {
				effect = b.send()
			}
			return b.admits(b.remaining(held)), effect
		}
		need -= b.lease.live(now)
	}
	w.cost, w.since, w.until = n, now, until
	w.MoreGranted, w.Short, w.asked = 0, false, false
	if retry, refused := w.refusal(b.denied.Load(), now, need); refused {
		return b.refuse(w, now, retry), Effect{}
	}
	if b.lease.backsOff(now) {
		return Verdict{Outcome: Failed, Left: b.remaining(b.lease.live(now))}, Effect{}
	}
	b.pending = b.pending.orNew()
	b.pending.waiters.join(w)
	b.ready.Store(false)
	return Verdict{Outcome: Waiting}, b.send()
}

// Leave takes w out because its caller gives up. It reports false if the verdict is in w.C already.
func (b *Bucket) Leave(w *Waiter) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pending == nil || w.in != &b.pending.waiters {
		return false
	}
	b.pending.waiters.leave(w)
	b.deliver()
	return true
}

// unlimited, as serve's level, refuses nobody.
const unlimited = math.MaxInt64

// Renew asks for a renewal in the background, after a decision found the pot at its low-water mark. Only a decision may
// ask: renewals that replies ask for would starve a hot process that moves about.
func (b *Bucket) Renew(now time.Duration) Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == closed || b.lease == nil || int64(now) < b.lease.pot.renewAt.Load() {
		return Effect{}
	}
	return b.send()
}

// Fill is a credit that fills a bucket to its room: a reset.
const Fill = unlimited

// Credit asks for n tokens to be given to the bucket: 1 ≤ n ≤ 2⁴⁰ for a token bucket, or Fill. It is filled no further
// than to its room. The verdict (Admitted if it is done, Failed, Outdated) comes through w.C.
func (b *Bucket) Credit(w *Waiter, n int64) (Verdict, Effect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == closed || b.Policy().Rule != ByLimit {
		return Verdict{Outcome: Outdated}, Effect{}
	}
	w.cost = n
	b.pending = b.pending.orNew()
	b.pending.credits = append(b.pending.credits, w)
	return Verdict{Outcome: Waiting}, b.send()
}

// awaited reports whether somebody waits for what Redis answers.
func (b *Bucket) awaited() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pending.count() > 0 || b.pending.crediting() > 0
}

// send puts the bucket into the queue, unless it is there or a call is under way.
func (b *Bucket) send() Effect {
	if b.queued || b.pending.calling() {
		return Effect{}
	}
	b.queued = true
	b.lease.renewFrom(never)
	return Effect{Send: true}
}

// needLease returns the lease state, a new one if there is none.
func (b *Bucket) needLease() *leaseState {
	if b.lease != nil {
		return b.lease
	}
	b.lease = &leaseState{ack: unknownAck}
	for w := range b.pending.waiting() {
		b.lease.maxCost.note(w.cost)
	}
	b.openPot(b.pending.count())
	return b.lease
}

// deliver ends a step that may have served somebody. It releases the pending state if nothing is left in it, and lets
// takers at the pot if nobody waits. Only then it delivers the verdicts: a caller who asks again at once finds the pot
// open, and what came with its verdict does not refuse it.
func (b *Bucket) deliver() {
	p := b.pending
	if p == nil {
		b.openPot(b.pending.count())
		return
	}
	decided := p.waiters.takeDecided()
	if p.idle() {
		b.pending = nil
		*p = pending{}
		pendings.Put(p)
	}
	b.openPot(b.pending.count())
	decided.deliver()
}

// Reserve keeps n tokens for a caller who was refused, waits, and asks again at until: what is held, and what comes
// next. Others are refused until there is more. So who asks for little at a time does not use up what others wait for.
// It lasts until it is called with 0 tokens.
func (b *Bucket) Reserve(n int64, until time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == closed {
		return
	}
	d := b.denied.copy()
	d.reserved, d.reservedUntil = n, until
	b.denied.put(&d)
	b.openPot(b.pending.count())
}

// Earliest reports when n tokens can be there at the earliest, by what is held here, by the level that Redis was last
// seen to have and by the refill. What others give back may come sooner. It reports known false if Redis granted all
// that was asked for and told of no level that was too low since: the bucket may be full.
func (b *Bucket) Earliest(now time.Duration, n int64) (at time.Duration, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, d := b.Policy(), b.denied.Load()
	if b.pending.count() == 0 { // also what takers do not see, because it is reserved; a call under way may spend it all
		n -= b.lease.live(now)
	}
	switch {
	case n <= 0:
		return now, true
	case !d.scarce():
		if p.Call.Algorithm != lua.TokenBucket || n <= p.Cap {
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
