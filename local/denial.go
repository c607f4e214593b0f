package local

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// longestDenial bounds how long a denial is believed, with jitter below it: returned tokens, refunds, a Reset and a
// raised limit must become visible. It costs a call in 4.4 s for a key that is asked for and refused all the time.
const longestDenial = 5 * time.Second

// denial is what the last refusal taught: the level that the bucket had, and until when that is to be believed. It knows
// about cost and age: a cheap request is not held back by a dear one. After a short grant everything is denied for a while.
// It never changes, so that it can be read without a lock. Nil and the zero value deny nothing.
type denial struct {
	level   float64
	nanos   float64       // that the refill takes for a token
	at      time.Duration // when the call that learned it was sent
	until   time.Duration
	holdOff time.Duration // everything is denied until then

	// Where no single refill tells the level, nanos is 0, and bound tokens and more are denied until opens. Where one
	// does, nothing is known of more than bound tokens: what is out leaves no room for them.
	bound float64
	opens time.Duration

	// What it comes to for one token, which is what most requests ask for: refused until, and when it may be there.
	oneUntil, oneAt time.Duration

	windows *windowState // nil if the policy just refills, else always the same. Kept here for the bucket's size
}

// learn notes a level that was too low, as the reply to a call sent then told.
func (d *denial) learn(p *Policy, level float64, sent time.Duration) {
	d.level, d.nanos, d.at, d.until = level, 0, sent, 0
	d.bound, d.opens = 0, 0
	if p.Counting == Refills {
		d.nanos, d.bound = float64(p.Per)/float64(p.Tokens), float64(p.Cap)
	}
}

// refused notes a refusal of least tokens whose reply arrived now. retry is Redis' estimate of when they may be there,
// negative for never; it tells the part of a token that the level, a whole number, leaves out.
func (d *denial) refused(p *Policy, least, whole int64, sent, now, retry time.Duration) {
	level := float64(whole)
	if p.Counting != Refills {
		d.learn(p, level, sent)
		d.bound, d.opens = float64(least), never
		if retry >= 0 && retry < never-now {
			d.opens = now + retry // from the arrival on: told to users, it must not be too early
		}
		d.believe(p, now, retry)
		return
	}
	if retry >= 0 {
		level = max(level, min(float64(least)-p.refill(retry), level+1))
	}
	d.learn(p, level, sent)
	d.believe(p, now, retry)
}

// scarce reports whether Redis had less than was asked for, the last time.
func (d *denial) scarce() bool { return d != nil && d.at > 0 }

// granted notes that a call brought tokens, where what was known before tells what part of a token it left, which r
// leaves out: others take whole tokens, and the refill is known. It reports false where that is not so.
func (d *denial) granted(p *Policy, c Call, r lua.Reply, now time.Duration) bool {
	if d.nanos == 0 || d.until == 0 { // not known, or not to a part of a token
		return false
	}
	level := d.level + p.refill(c.sent-d.at)
	if level > float64(p.Cap) { // it may have been full
		return false
	}
	level -= float64(r.Grant)
	part := level - math.Floor(level)
	if level < float64(r.Level) { // as exact as round trips are even
		part = 0
	}
	d.learn(p, float64(r.Level)+part, c.sent)
	if !c.Direct {
		d.bound -= float64(c.Hold + r.Grant)
	}
	d.believe(p, now, d.wait(now, r.Level+1))
	return true
}

// raise notes that there were whole tokens when a call was sent that asked for none, if that is more than the refill
// brought: what this process gave back, for one.
func (d *denial) raise(p *Policy, whole int64, sent time.Duration) {
	if d.nanos > 0 && float64(whole) > d.level+p.refill(sent-d.at) {
		d.level, d.at = float64(whole), sent
	}
}

// believe sets how long a refusal is believed.
func (d *denial) believe(p *Policy, now, retry time.Duration) {
	longest := p.between(0.75, 1, longestDenial)
	if retry < 0 || retry > longest {
		retry = longest
	}
	// A sixteenth of jitter, so that processes refused together do not come back together.
	d.until = now + retry + p.between(0, 1.0/16, retry)
}

// ready reports when need tokens may be there, by what was learned: by the refill, or when the windows open.
func (d *denial) ready(need int64) time.Duration {
	if d.nanos == 0 {
		if float64(need) <= d.level {
			return d.at
		}
		return d.opens // of a cheaper request than was refused, an upper bound
	}
	w := math.Ceil((float64(need) - d.level) * d.nanos)
	if w >= float64(never-d.at) {
		return never
	}
	return d.at + time.Duration(w)
}

// wait reports how long it is until need tokens may be there: 0 or less when they may be there now.
func (d *denial) wait(now time.Duration, need int64) time.Duration {
	return d.ready(need) - now
}

// seal works out what the denial comes to for one token. It is the last that happens to it.
func (d *denial) seal() {
	ready := d.ready(1)
	d.oneUntil, d.oneAt = d.holdOff, max(ready, d.holdOff)
	if d.knows(1) {
		d.oneUntil = max(d.oneUntil, min(d.until, ready))
	}
}

// knows reports whether what was learned says anything of need tokens.
func (d *denial) knows(need int64) bool {
	if d.nanos > 0 {
		return float64(need) <= d.bound
	}
	return float64(need) >= d.bound
}

// refuses reports whether a request is denied that needs need tokens, and when it may be admitted: never in less than a
// microsecond.
func (d *denial) refuses(now time.Duration, need int64) (retry time.Duration, refused bool) {
	retry, refused = d.lacks(now, need)
	if d != nil && now < d.holdOff {
		return max(retry, d.holdOff-now), true
	}
	return retry, refused
}

// lacks is refuses without the hold-off.
func (d *denial) lacks(now time.Duration, need int64) (retry time.Duration, refused bool) {
	if d == nil {
		return time.Microsecond, false
	}
	wait := d.wait(now, need)
	return max(wait, time.Microsecond), d.knows(need) && now < d.until && wait > 0
}
