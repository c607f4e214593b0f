package local

import "time"

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

// Peek reports what is known here: the tokens held, and the level in Redis by the last reply and the refill since.
func (b *Bucket) Peek(now time.Duration) (held, level int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lease.live(now), b.levelAt(now)
}

// Lives reports whether the bucket that Redis was last seen to have must still be there at now, and whether it is likely
// to be. epoch is the one that the call named. A refund names the bucket that it was taken from, which may be an earlier
// one.
func (b *Bucket) Lives(now time.Duration, epoch int64) (surely, likely bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == closed || epoch != b.view.epoch {
		return false, false
	}
	p, w := b.Policy(), b.denied.windows()
	return b.view.outlives(now, p, w), b.view.likely(now, p, w)
}

// UnderWay is what the owner may ask of the call under way.
type UnderWay struct {
	Charged int64 // tokens of charges that it reports
	Quiet   bool  // it is made for nobody but waiters that are Quiet: then nobody is to be told of it
	Leased  bool  // a lease lives. If a reply says that its record is not there, Redis has lost writes
}

// UnderWay describes the call seq. It is zero if that is not under way.
func (b *Bucket) UnderWay(now time.Duration, seq int64) UnderWay {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.pending.carries(seq) {
		return UnderWay{}
	}
	c := &b.pending.call
	return UnderWay{c.certain, c.quiet, b.lease.lives(now)}
}
