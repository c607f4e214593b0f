package local

import (
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// view is what this process knows of the bucket in Redis by its last reply, and of Redis.
type view struct {
	level atomic.Int64  // whole tokens; negative is debt. Takers read it without the mutex
	at    time.Duration // when the call left that was told the level

	// Invariant: both were read in the same reply, while nothing was owed or with the debt. Read while something else
	// is owed, the overflow would hide what the bucket threw away since that was admitted.
	overflow int64
	epoch    int64 // of the bucket that the overflow is of; 0 if none was read

	fleet     int32     // processes that the share is a part for; 0 before it is known
	certainty certainty // how well the level bounds what the bucket has
	failures  uint8     // calls without an answer, in a row
	probe     probe
}

// certainty says how much the bucket had at most when its level was last seen; see [Bucket.Outlives].
type certainty uint8

// outgrown is a flag beside the certainty: the bucket in Redis had a larger burst, or has. So it is still there when it
// is full by this policy, and a raised limit finds it no fuller.
const outgrown certainty = 1 << 7

// setCertainty leaves the flag as it is.
func (b *Bucket) setCertainty(c certainty) { b.view.certainty = b.view.certainty&outgrown | c }

const (
	roundedDown certainty = iota // less than one token more than the level
	exact                        // the level
	doubtful                     // nobody here knows
	another                      // nobody here knows, and the epoch is that of an earlier bucket
)

// certaintyOf says what a reply to a call leaves uncertain.
func certaintyOf(c Call, r lua.Reply) certainty {
	switch {
	case c.others(r) > 0: // they may give something back
		return doubtful
	case r.Flags&lua.OtherTerms != 0: // it refills by the larger limit of another process
		return doubtful
	case r.Level >= c.Policy.Cap-c.Hold-r.Grant: // the bucket is full
		return exact
	}
	return roundedDown
}

// see notes what a reply says of the bucket in Redis. The debt that it accepted is settled before.
func (b *Bucket) see(c Call, r lua.Reply) {
	s := &b.view
	b.windows().countsUntil(c, r, s.epoch)
	s.level.Store(r.Level)
	s.at = c.sent
	switch {
	case r.Flags&lua.OtherTerms != 0:
		b.view.certainty |= outgrown
	case r.Flags&lua.Created != 0:
		b.view.certainty &^= outgrown
	}
	b.setCertainty(certaintyOf(c, r))
	// What was admitted while a call carried the rest of the debt was admitted about now.
	if r.Epoch != 0 && (c.Debt > 0 || b.owing() == 0) {
		s.overflow, s.epoch = r.Overflow, r.Epoch
	} else if r.Epoch != s.epoch {
		b.setCertainty(another) // the next reply of the same bucket will say that it is another one
	}
}

// levelAt is the level in Redis by the last reply and the refill since.
func (b *Bucket) levelAt(now time.Duration) int64 {
	p, level := b.Policy(), b.view.level.Load()
	if w := b.windows(); w != nil {
		if w.clear(now) {
			return p.Cap
		}
		return min(level, p.Cap)
	}
	return int64(min(float64(level)+p.refill(now-b.view.at), float64(p.Cap)))
}

// LastUse returns when Redis was last asked by the bucket's policy, or when its lease ends if that is later. It reports
// false if it was never asked.
func (b *Bucket) LastUse(now time.Duration) (at time.Duration, asked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at = b.view.at
	if b.queued || b.pending.calling() {
		at = now
	}
	if b.lease.out(now) {
		at = max(at, b.lease.outUntil)
	}
	return at, at > 0
}

// full reports whether the bucket in Redis is full with nothing out, by all that is known here, and so as good as none.
func (b *Bucket) full(now time.Duration) bool {
	if b.view.certainty&outgrown != 0 || b.queued || b.pending.calling() || b.view.failures > 0 || b.lease.out(now) || b.lease.owes() {
		return false
	}
	return b.levelAt(now) >= b.Policy().Cap
}

// Peek reports what is known here: the tokens held, and the level in Redis by the last reply and the refill since.
func (b *Bucket) Peek(now time.Duration) (held, level int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lease.live(now), b.levelAt(now)
}

// Outlives reports whether the bucket that Redis was last seen to have must still be there at now, because it cannot be
// full by then. If it reports false and the bucket is not there, it may just have expired.
//
// If in doubt it reports false. The level may have been up to a token higher than was told, it was as of some time
// after the call was sent, and Redis' clock may run faster than the process'. Where others hold leases, or a call
// without an answer may have given something back, nothing is known. It cannot see a Reset by others, nor what they
// give back of what was admitted.
//
// named is the epoch that the call named. A refund names the bucket that it was taken from, which may be an earlier
// one.
func (b *Bucket) Outlives(now time.Duration, named int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.view.certainty &^ outgrown
	if known >= doubtful || b.life == closed || named != b.view.epoch {
		return false
	}
	elapsed := now - b.view.at
	drifted := time.Duration(float64(elapsed) * drift)
	if w := b.windows(); w != nil {
		return now+drifted < w.counts
	}
	p, most := b.Policy(), float64(b.view.level.Load())
	if known == roundedDown {
		most++
	}
	return most+p.refill(elapsed+drifted) < float64(p.Cap)
}

// Expected reports whether the bucket that Redis was last seen to have should still be there at now: it was to have less
// than half of its tokens. It is a guess, where Outlives is in doubt: others would have to have given back as much. named
// is the epoch that the call named.
func (b *Bucket) Expected(now time.Duration, named int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == closed || named == 0 || named != b.view.epoch || b.view.certainty&^outgrown == another {
		return false
	}
	p, level, elapsed := b.Policy(), float64(b.view.level.Load()), now-b.view.at
	if w := b.windows(); w != nil {
		return level < float64(p.Cap)/2 && now+time.Duration(float64(elapsed)*drift) < w.counts
	}
	return level+p.refill(elapsed) < float64(p.Cap)/2
}

// LostRecord reports whether a reply to the call seq that says that the call before is not on record means that Redis
// lost writes: that record was to live on. Otherwise it is over, as it should be, or this process began anew.
func (b *Bucket) LostRecord(now time.Duration, seq int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pending.carries(seq) && b.lease.lives(now)
}

// takeProbe reports whether a probe is wanted, and notes that it is made.
func (v *view) takeProbe() bool {
	wanted := v.probe == probeNow
	v.probe = probeNot
	return wanted
}
