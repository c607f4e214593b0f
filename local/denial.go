package local

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// denial is what refusals said: the level that the bucket had, and until when to believe that. It
// takes costs into account, so an expensive request does not hold back a cheap one, and is not told
// the cheap one's time. After a short grant everything is denied for a while. A nil denial and the
// zero value deny nothing.
//
// Invariant: it does not change once it is stored in a bucket, because it is read without a lock.
type denial struct {
	level   float64       // tokens at the time at
	nanos   float64       // ns that the refill takes for a token
	at      time.Duration // when the call was sent that was told the level; 0 for no refusal
	until   time.Duration // the level is believed until then; 0 if it leaves out a part of a token
	holdOff time.Duration // everything is denied until then

	// What comes next is for a caller who waits: see Bucket.Reserve.
	reserved      int64         // tokens that others have to leave; 0 if nobody waits
	reservedUntil time.Duration // when that caller asks, or a little later

	// If no single refill tells the level, nanos is 0, and each cost that was refused has a step.
	// If one does, nothing is known about more than bound tokens: what is out in leases leaves no
	// room for them.
	steps *steps
	bound float64

	// The same for one token, which is what most requests ask for; see setOne.
	oneUntil time.Duration // refused until then
	oneAt    time.Duration // it may be there then

	// larger is the key's policy with the limit of another process that governs instead, because it
	// is larger. Leases follow that limit, because otherwise a process with a slower rate would ask
	// more often and get most. It is nil while the key's own limit governs.
	larger *Policy

	windows *windowState // nil if the policy just refills, else always the same. Kept here for the bucket's size
}

// denials holds what a bucket knows to be refused. It is read without the mutex, and changed under
// it.
type denials struct{ atomic.Pointer[denial] }

// copy returns a denial to change.
func (s *denials) copy() denial {
	if d := s.Load(); d != nil {
		return *d
	}
	return denial{}
}

// put stores a changed copy, unless it says the same.
func (s *denials) put(d *denial) {
	d.setOne()
	switch old := s.Load(); {
	case *d == denial{}:
		s.Store(nil)
	case old == nil || *d != *old:
		kept := *d // so that only what is kept is allocated
		s.Store(&kept)
	}
}

// clear forgets what is known to be refused.
func (s *denials) clear() {
	if w := s.windows(); w != nil {
		s.Store(&denial{windows: w})
	} else {
		s.Store(nil)
	}
}

// windows is nil if the policy just refills.
func (s *denials) windows() *windowState {
	if d := s.Load(); d != nil {
		return d.windows
	}
	return nil
}

// refuses reports whether a request that needs need tokens is denied, and in how long it may be
// admitted, which is at least 1 µs.
func (d *denial) refuses(now time.Duration, need int64) (retry time.Duration, refused bool) {
	if d.reserves() { // refused, unless it is known that there is enough for both
		need += d.reserved
		after := max(d.wait(now, need), d.reservedUntil-now, d.holdOff-now)
		return max(after, time.Microsecond), after > 0 || d.nanos == 0 || !d.knows(need)
	}
	retry, refused = d.lacks(now, need)
	if d != nil && now < d.holdOff && d.tells(need) {
		return max(retry, d.holdOff-now), true
	}
	return retry, refused
}

// lacks is refuses for a caller who waits: without the hold-off, and without what is reserved for
// such a caller.
func (d *denial) lacks(now time.Duration, need int64) (retry time.Duration, refused bool) {
	if d == nil {
		return time.Microsecond, false
	}
	wait, until := d.wait(now, need), d.until
	if d.nanos == 0 {
		until = d.steps.until(need)
	}
	return max(wait, time.Microsecond), d.knows(need) && now < until && wait > 0
}

// tells reports whether ready says when need tokens may be there. For other costs that time would
// be too early, or the time of another cost, so Redis is asked.
func (d *denial) tells(need int64) bool {
	return d != nil && (d.nanos == 0 && float64(need) <= d.level || d.knows(need))
}

// knows reports whether what is known says anything about need tokens.
func (d *denial) knows(need int64) bool {
	if d.nanos > 0 {
		return float64(need) <= d.bound
	}
	return d.steps.know(need)
}

// reserves reports whether what comes next is for a caller who waits.
func (d *denial) reserves() bool { return d != nil && d.reserved > 0 }

// scarce reports whether Redis had less than was asked for the last time.
func (d *denial) scarce() bool { return d != nil && d.at > 0 }

// ready reports when need tokens may be there: by the refill, or when the windows open.
func (d *denial) ready(need int64) time.Duration {
	if d.nanos == 0 {
		if float64(need) <= d.level {
			return d.at
		}
		return d.steps.opens(need)
	}
	const (
		tick     = float64(time.Microsecond) // Redis' clock has no shorter time
		rounding = 1e-12                     // tokens: what float64 loses; the script forgives more
	)
	w := math.Ceil((float64(need)-d.level-rounding)*d.nanos/tick) * tick
	if w >= float64(never-d.at) {
		return never
	}
	return d.at + time.Duration(w)
}

// wait reports how long it is until need tokens may be there: 0 or less when they may be there now.
func (d *denial) wait(now time.Duration, need int64) time.Duration {
	return d.ready(need) - now
}

// earliest reports when need tokens can be there at the earliest, if no single refill tells the
// level. It reports known false if they may be there now.
func (d *denial) earliest(need int64) (at time.Duration, known bool) {
	if lower, _ := d.steps.around(need); lower != nil {
		return lower.opens, true
	}
	return d.ready(need), false
}

// replied notes what a reply says about what is refused from now on. It reports until when no
// renewal makes sense. What comes for those who wait and ask again leaves the hold-off of the
// others as it was.
func (d *denial) replied(p *Policy, c Call, r lua.Reply, now time.Duration) (renewal time.Duration) {
	short, byOther := r.Grant < c.Want, r.Flags&lua.OtherTerms != 0
	d.larger = d.larger.with(c.Policy, r.Governs)
	if c.Ret > 0 { // the steps are what was missing beside it
		d.steps = nil
	}
	switch {
	case short && r.Grant == 0:
		d.refused(p, c.Min, r.Level, c.sent, now, micros(r.Retry), byOther)
	case c.forWaiters && !byOther && (short || r.Level < 1) && d.granted(p, c, r, now): // so the next need not ask to know
	case short:
		d.setLevel(p, float64(r.Level), c.sent) // for the retry time; the hold-off denies
		if d.nanos == 0 && r.Retry > 0 {
			d.refused(p, 1, r.Level, c.sent, now, micros(r.Retry), byOther)
		}
	case c.Want > 0 || c.credits > 0:
		*d = denial{windows: d.windows, reserved: d.reserved, reservedUntil: d.reservedUntil, larger: d.larger}
	default:
		d.correct(p, r.Level, c.sent)
	}
	if d.nanos > 0 && !c.Direct { // tokens that Redis takes for leased leave no room, until it is told that they are spent
		d.bound = float64(p.Cap - c.Hold - r.Grant)
	}
	renewal = d.holdOff
	if short && c.leases() && p.holdsOff(r) {
		renewal = p.holdOffEnd(c)
		if d.windows.endsWithWindow() {
			renewal = min(renewal, now+micros(r.TTLLeft)) // then another window begins, and nothing of it is used
		}
	}
	if !c.forWaiters && d.leaves(c, r) && now >= d.holdOff { // else others were told of the one that lasts
		d.holdOff = renewal
	}
	return renewal
}

// leaves reports whether a hold-off leaves something to others, or spares calls. Otherwise Redis
// has told when to ask.
func (d *denial) leaves(c Call, r lua.Reply) bool { return d.nanos > 0 || c.others(r) > 0 }

// holdOffEnd reports until when a process asks for nothing after a short grant to a call: for a
// period of it, a quarter more or less, so that processes do not ask together. However long a lease
// lasts, what comes back is seen as soon as after a denial.
func (p *Policy) holdOffEnd(c Call) time.Duration {
	period := min(c.period, maxOverdrawn)
	if p.Window > 0 {
		period = min(period, p.Window/slidingHoldOff)
	}
	return c.sent + p.between(0.75, 1.25, period)
}

// holdsOff reports whether everything is denied for a while after a short grant. As a rule what is
// left is for others, or, if nothing was granted, for cheaper requests. A sliding window and a slow
// limit are asked as long as there is something left: as a window fills up, the grants get smaller
// and more frequent, down to one token at a time, and nobody is refused before it is full.
func (p *Policy) holdsOff(r lua.Reply) bool {
	return r.Level < 1 || r.Grant > 0 && p.Window == 0 && !p.slow()
}

// refused notes a refusal of least tokens whose reply arrived now. retry is Redis' estimate of when
// they may be there, negative for never. It also tells the part of a token that the level, a whole
// number, leaves out.
//
// byOther says that the bucket refills by a larger limit of another process, which this one does
// not know. Then that estimate is all that is known, and so it is if that is later than the refill:
// leases leave no room before they end.
func (d *denial) refused(p *Policy, least, whole int64, sent, now, retry time.Duration, byOther bool) {
	level := float64(whole)
	// Others hold tokens if the refill cannot bring what is missing by then, or would bring it
	// sooner.
	others := retry > later(p.wait(float64(least-whole)), time.Microsecond) ||
		retry > 0 && retry < p.wait(float64(least-whole-1))-time.Microsecond
	if !p.Call.Algorithm.Has(lua.OneLevel) || byOther || others {
		known := d.steps
		d.setLevel(p, level, sent)
		d.nanos = 0
		d.believe(p, now, retry)
		s := step{least, never, d.until}
		if retry >= 0 && retry < never-now {
			s.opens = now + retry // counted from the arrival: users are told of it, so it must not be too early
		}
		d.steps = known.with(s, now, whole)
		if p.Call.Algorithm.Has(lua.Edges) { // at its edge all that it holds is there
			d.steps = d.steps.with(step{p.Cap, s.opens, s.until}, now, whole)
		}
		return
	}
	if retry >= 0 {
		level = max(level, min(float64(least)-p.refill(retry), level+1))
	}
	d.setLevel(p, level, sent)
	d.believe(p, now, retry)
}

// setLevel notes a level that was too low, by the reply to a call that was sent at sent.
func (d *denial) setLevel(p *Policy, level float64, sent time.Duration) {
	d.level, d.nanos, d.at, d.until = level, 0, sent, 0
	d.bound, d.steps = 0, nil
	if p.Call.Algorithm.Has(lua.OneLevel) {
		d.nanos, d.bound = float64(p.Per)/float64(p.Tokens), float64(p.Cap)
	}
}

// believe sets until when a refusal is believed.
func (d *denial) believe(p *Policy, now, retry time.Duration) {
	longest := p.between(0.75, 1, longestDenial)
	if retry < 0 || retry > longest {
		retry = longest
	}
	// A sixteenth of jitter, so that processes refused together do not come back together.
	d.until = now + min(retry+p.between(0, 1.0/16, retry), longestDenial)
}

// granted notes that a call brought tokens, and works out what part of a token it left, which the
// reply leaves out: others take whole tokens, and the refill is known. It reports false if too
// little was known before.
func (d *denial) granted(p *Policy, c Call, r lua.Reply, now time.Duration) bool {
	if d.nanos == 0 || d.until == 0 { // the level was not known, or not to a part of a token
		return false
	}
	level := d.level + p.refill(c.sent-d.at-time.Microsecond) // Redis counts in whole ones
	if level > float64(p.Cap) {                               // it may have been full
		return false
	}
	level -= float64(r.Grant)
	part := level - math.Floor(level)
	if level < float64(r.Level) { // round trips differ: this is no more exact than they are
		part = 0
	}
	d.setLevel(p, float64(r.Level)+part, c.sent)
	d.believe(p, now, d.wait(now, r.Level+1))
	return true
}

// correct notes that there were whole tokens when a call was sent that asked for none, if that is
// not what the refill brought: this process may have given some back, or charged some. These are
// whole tokens too, so the part of one that the refill brought stays.
func (d *denial) correct(p *Policy, whole int64, sent time.Duration) {
	if d.nanos == 0 {
		if d.steps = d.steps.above(whole); float64(whole) < d.level {
			d.steps = nil
		}
		return
	}
	sent -= (sent - d.at) % time.Microsecond // so that a time that was told stays what it was: see ready
	known := d.level + p.refill(sent-d.at)
	switch {
	case known > d.bound, float64(whole+1) < known: // what was leased left no room, or a part of a token is left out: Redis is asked
		d.level, d.at, d.until = float64(whole), sent, 0
	case float64(whole) > known && d.until == 0: // no part of a token was known
		d.level, d.at = float64(whole), sent
	case float64(whole) > known:
		d.level, d.at = float64(whole)+known-math.Floor(known), sent
	}
}

// charge notes that n tokens more are owed than the level that was told says. Redis charges whole
// tokens, and none below the lowest level. If the bucket may be full before it hears of them, some
// of the refill is lost, and nothing is known.
func (d *denial) charge(p *Policy, now time.Duration, n int64) {
	if d.nanos == 0 {
		d.level, d.steps = d.level-float64(n), nil
		return
	}
	now -= (now - d.at) % time.Microsecond // see correct
	level := d.level + p.refill(now-d.at)
	if level+p.refill(2*refundDelay) > d.bound {
		*d = denial{windows: d.windows, reserved: d.reserved, reservedUntil: d.reservedUntil}
		return
	}
	d.level, d.at = level-min(float64(n), max(math.Floor(level-p.lowest()), 0)), now
}

// setOne works out what the denial means for one token. It is called last, before the denial is
// stored.
func (d *denial) setOne() {
	ready := d.ready(1)
	if d.reserved > 0 {
		ready = max(d.ready(1+d.reserved), d.reservedUntil)
	}
	d.oneUntil, d.oneAt = d.reservedUntil, max(ready, d.holdOff)
	if d.tells(1) {
		d.oneUntil = max(d.oneUntil, d.holdOff)
	}
	if d.knows(1) {
		until := d.until
		if d.nanos == 0 {
			until = d.steps.until(1)
		}
		d.oneUntil = max(d.oneUntil, min(until, ready))
	}
}
