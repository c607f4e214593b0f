package local

import (
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// view is what this process knows of the bucket in Redis by its last reply, and of Redis.
type view struct {
	// level is in whole tokens, less those that were charged and not reported yet; negative is
	// debt. Takers read it without the mutex.
	level atomic.Int64
	at    time.Duration // when the call left that was told the level

	// Invariant: both were read in the same reply, while nothing was owed or with the debt. Read
	// while something else is owed, the overflow would hide what the bucket threw away since that
	// was admitted.
	overflow int64
	epoch    int64 // of the bucket that the overflow is of; 0 if none was read

	fleet     int32     // processes that the fallback is a part for; 0 before it is known
	certainty certainty // how well the level bounds what the bucket has
	failures  uint8     // calls without an answer, in a row
	probe     probe
	telling   telling // the last byte of a word: one more costs eight in each key
}

// retries is the number of failed calls in a row that open a breaker. Until then each is followed
// by a call that no request asks for. After that either the breaker is open, or the node answers
// others, and this key can wait for the next request.
const retries = 3

// certainty says how much the bucket had at most when its level was last seen; see
// [Bucket.UnderWay].
type certainty uint8

// outgrown is a flag beside the certainty: the bucket in Redis had a larger burst, or has. So it is
// still there when it is full by this policy, and a raised limit finds it no fuller.
const outgrown certainty = 1 << 7

const (
	roundedDown certainty = iota // less than one token more than the level
	exact                        // the level
	doubtful                     // nobody here knows
	another                      // nobody here knows, and the epoch is that of an earlier bucket, or of one that may be forgotten
)

// probe says whether a call is wanted that nobody waits for.
type probe uint8

const (
	probeNot   probe = iota
	probeLater       // to find out whether Redis answers, when the back-off is over
	probeNow         // the same, now
)

// telling says whether the owner is to tell Redis of a debt though nobody asks for the key.
type telling uint8

const (
	tellNot    telling = iota
	tellLater          // once there was an outage
	tellOutage         // there is one, or was
)

// certaintyOf says what a reply to a call leaves uncertain.
func certaintyOf(c Call, r lua.Reply) certainty {
	switch {
	case c.others(r) > 0: // they may give something back
		return doubtful
	case r.Flags&lua.OtherTerms != 0: // it refills by the larger limit of another process
		return doubtful
	case r.Level >= c.whole()-c.Hold-r.Grant: // the bucket is full
		return exact
	}
	return roundedDown
}

// update notes what a reply says of the bucket in Redis. owes says that something is owed yet,
// beside the debt that it accepted.
func (v *view) update(c Call, r lua.Reply, w *windowState, owes bool) {
	w.countsUntil(c, r, v.epoch)
	v.level.Store(r.Level)
	v.at = c.sent
	switch {
	case r.Flags&lua.OtherTerms != 0:
		v.certainty |= outgrown
	case r.Flags&lua.Created != 0:
		v.certainty &^= outgrown
	}
	v.setCertainty(certaintyOf(c, r))
	// What was admitted while a call carried the rest of the debt was admitted about now.
	if r.Epoch != 0 && (c.Debt > 0 || !owes) {
		v.overflow, v.epoch = r.Overflow, r.Epoch
	} else if r.Epoch != v.epoch {
		v.setCertainty(another) // the next reply of the same bucket will say that it is another one
	}
}

// setCertainty notes how well the level bounds what the bucket has. It leaves the flag as it is.
func (v *view) setCertainty(c certainty) { v.certainty = v.certainty&outgrown | c }

// unanswered notes that a call that may have given something back may have been executed.
func (v *view) unanswered(c Call) {
	if c.Ret+c.Refund+c.settledNow > 0 || c.credits > 0 {
		v.doubt()
	}
}

// doubt notes that nobody here knows what the bucket has.
func (v *view) doubt() { v.setCertainty(max(v.certainty&^outgrown, doubtful)) }

// takeProbe reports whether a probe is wanted, and notes that it is made.
func (v *view) takeProbe() bool {
	wanted := v.probe == probeNow
	v.probe = probeNot
	return wanted
}

// charge takes n tokens off the level. A window is charged no more than it has.
func (v *view) charge(now time.Duration, n int64, p *Policy, w *windowState) {
	level, least := v.level.Load(), int64(p.lowest())
	if w != nil && p.Call.Algorithm.Has(lua.Window) {
		least = min(level, 0)
	}
	if by := v.levelAt(now, p, w); by >= p.Cap || level-n < least { // else the refill since comes besides
		level, v.at = by, now
		v.doubt()
	}
	w.charged(now, p, n)
	v.level.Store(max(level-n, least))
}

// levelAt is the level in Redis by the last reply and the refill since.
func (v *view) levelAt(now time.Duration, p *Policy, w *windowState) int64 {
	level := v.level.Load()
	if w != nil {
		if w.clear(now) {
			return p.Cap
		}
		return min(level, p.Most())
	}
	return int64(min(float64(level)+p.refill(now-v.at), float64(p.Cap)))
}

// outlives reports whether the bucket that Redis was last seen to have must still be there at now,
// because it cannot be full by then. If it reports false and the bucket is not there, it may just
// have expired.
//
// If in doubt it reports false. The level may have been up to a token higher than was told, it was
// as of some time after the call was sent, and Redis' clock may run faster than the process'. Where
// others hold leases, or a call without an answer may have given something back, nothing is known.
// It cannot see a Reset by others, nor what they give back of what was admitted. charged is what
// the level leaves out because Redis has not heard of it.
func (v *view) outlives(now time.Duration, p *Policy, w *windowState, charged int64) bool {
	known := v.certainty &^ outgrown
	if known >= doubtful {
		return false
	}
	elapsed := now - v.at
	drifted := time.Duration(float64(elapsed) * drift)
	if w != nil {
		return now+drifted < w.counts
	}
	most := float64(v.level.Load() + charged)
	if known == roundedDown {
		most++
	}
	return most+p.refill(elapsed+drifted) < float64(p.Cap)
}

// likely reports whether that bucket should still be there at now: it was to have less than half of
// its tokens. It is a guess, where outlives is in doubt: others would have to have given back as
// much.
func (v *view) likely(now time.Duration, p *Policy, w *windowState, charged int64) bool {
	if v.epoch == 0 || v.certainty&^outgrown == another {
		return false
	}
	level, elapsed := float64(v.level.Load()+charged), now-v.at
	if w != nil {
		return level < float64(p.Cap)/2 && now+time.Duration(float64(elapsed)*drift) < w.counts
	}
	return level+p.refill(elapsed) < float64(p.Cap)/2
}
