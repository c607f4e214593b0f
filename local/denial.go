package local

import "time"

// longestDenial bounds how long a denial is believed, with jitter below it: returned tokens, refunds, a Reset and a
// raised limit must become visible. It costs a call in 4.4 s for a key that is asked for and refused all the time.
const longestDenial = 5 * time.Second

// denial is what the last refusal taught: the level that the bucket had, and until when that is to be believed. It knows
// about cost and age: a cheap request is not held back by a dear one. The zero value denies nothing.
type denial struct {
	level float64
	at    time.Duration // when the call that learned it was sent
	until time.Duration
}

// learn notes a refusal of least tokens whose reply arrived now. retry is Redis' estimate of when they may be there,
// negative for never; it tells the part of a token that the level, a whole number, leaves out.
func (d *denial) learn(p *Policy, least, whole int64, sent, now, retry time.Duration) {
	level := float64(whole)
	if retry >= 0 {
		level = max(level, min(float64(least)-p.refill(retry), level+1))
	}
	longest := p.between(0.75, 1, longestDenial)
	if retry < 0 || retry > longest {
		retry = longest
	}
	// A sixteenth of jitter, so that processes refused together do not come back together.
	*d = denial{level: level, at: sent, until: now + retry + p.between(0, 1.0/16, retry)}
}

// holds reports whether need tokens are known not to be there.
func (d *denial) holds(p *Policy, now time.Duration, need int64) bool {
	return now < d.until && d.level+p.refill(now-d.at) < float64(need)
}

// retry reports when need tokens may be there, by the level that was learned: never less than a microsecond.
func (d *denial) retry(p *Policy, now time.Duration, need int64) time.Duration {
	return max(p.wait(float64(need)-d.level-p.refill(now-d.at)), time.Microsecond)
}
