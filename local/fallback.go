package local

import (
	"math"
	"time"

	"golang.org/x/time/rate"
)

// fallback is what this process may admit of a key while Redis does not answer: the limit divided
// by the processes of the fleet. It is debited with everything that the process admits, at all
// times. So an outage begins with what is left of its fair part, and no outage refills it.
//
// The bucket's mutex guards it. The zero value holds nothing.
type fallback struct {
	limiter rate.Limiter

	// last is the latest time that it was asked at. Invariant: it never falls. Called with an
	// earlier time, a rate.Limiter rewinds and mints tokens (golang/go#65508, golang/go#71360).
	last time.Duration

	debited int64 // tokens of leases and direct takes that were spent when it was last debited
}

// base is what now is added to, because x/time/rate wants a time.Time. Any fixed instant will do.
// One that was read from the clock has a monotonic part, and package time computes twice as fast
// with that.
var base = time.Now()

// resize makes the fallback one part in fleet. A new fallback is full: nothing of its fair part was
// used.
func (f *fallback) resize(p *Policy, now time.Duration, fleet int64, fill bool) {
	at := f.time(now)
	// At least 1: a fallback of less than one token would never admit.
	burst := int(min(max(p.Cap/fleet, 1), math.MaxInt))
	if fill { // a moment at an endless rate: a rate.Limiter begins empty
		f.limiter.SetBurstAt(at.Add(-1), burst)
		f.limiter.SetLimitAt(at.Add(-1), rate.Inf)
	}
	f.limiter.SetLimitAt(at, rate.Limit(float64(p.Tokens)/p.Per.Seconds()/float64(fleet)))
	f.limiter.SetBurstAt(at, burst)
}

// debit charges n tokens that were admitted. What exceeds the whole tokens of the fallback is
// forgiven.
func (f *fallback) debit(now time.Duration, n int64) {
	if n <= 0 {
		return
	}
	at := f.time(now)
	if k := min(n, int64(f.limiter.TokensAt(at))); k > 0 {
		f.limiter.AllowN(at, int(k))
	}
}

// owe charges n tokens that were admitted without Redis whether the fallback had them or not. It
// may go as far below zero as its part of the bucket in Redis. What exceeds that is forgiven.
func (f *fallback) owe(now time.Duration, n int64, p *Policy, fleet int64) {
	at := f.time(now)
	most := f.limiter.TokensAt(at) + (float64(p.maxDebt())+p.refill(time.Second))/float64(max(fleet, 1))
	if k := int(min(float64(n), most)); k > 0 {
		burst := f.limiter.Burst()
		f.limiter.SetBurstAt(at, max(k, burst)) // no more than a burst can be reserved
		f.limiter.ReserveN(at, k)
		f.limiter.SetBurstAt(at, burst)
	}
}

// take takes n tokens if the fallback has them. If not, it reports what is left and in how long it
// may have them: 0 if never, because n exceeds the burst of the fallback.
func (f *fallback) take(now time.Duration, n int64) (ok bool, left int64, retry time.Duration) {
	at := f.time(now)
	if f.limiter.AllowN(at, int(n)) {
		return true, 0, 0
	}
	left, retry = f.lacks(now, n)
	return false, left, retry
}

// has reports whether take would take n tokens. Less than a nanosecond of refill may be missing:
// x/time/rate takes that for nothing.
func (f *fallback) has(now time.Duration, n int64) bool {
	return n <= int64(f.limiter.Burst()) && f.refills(float64(n)-f.tokens(now)) < 1
}

// refills returns how long the refill takes for that many tokens, in ns.
func (f *fallback) refills(tokens float64) (ns float64) {
	return tokens / float64(f.limiter.Limit()) * float64(time.Second)
}

// lacks reports what is left when that is less than n tokens, and in how long there may be n of
// them: 0 for never.
func (f *fallback) lacks(now time.Duration, n int64) (left int64, retry time.Duration) {
	tokens := f.tokens(now)
	left = int64(max(tokens, 0)) // see has: it may be below zero
	if n > int64(f.limiter.Burst()) {
		return left, 0
	}
	// The nearest nanosecond, with which has is content. To round up would make 2.000000001 s of 2
	// s when float64 has lost something. Of days it loses more than half a nanosecond, so that much
	// of n comes on top.
	const rounding = 1 + 0x1p-51
	wait := math.Ceil(f.refills(float64(n)*rounding-tokens) - 0.5)
	if wait >= never { // 292 years are beyond a time.Duration
		return left, 0
	}
	return left, max(time.Duration(wait), time.Microsecond)
}

// missing reports the tokens that the refill has not brought back yet, rounded up: that much of
// what was admitted without Redis is certainly still owed.
func (f *fallback) missing(now time.Duration) int64 {
	return max(int64(math.Ceil(float64(f.limiter.Burst())-f.tokens(now))), 0)
}

// tokens reports what the fallback would admit now.
func (f *fallback) tokens(now time.Duration) float64 {
	return f.limiter.TokensAt(f.time(now))
}

// time is now, or the latest time so far if that is later.
func (f *fallback) time(now time.Duration) time.Time {
	f.last = max(f.last, now)
	return base.Add(f.last)
}

// keep remembers what the bucket id, which is about to be closed, has used of its fallback. It does
// so under every fail mode, because the mode of now need not be that in which the key comes back: a
// removed policy fails closed.
func (f *fallback) keep(now time.Duration, p *Policy, id ID) {
	if p.Spent == nil || f.limiter.Burst() == 0 {
		return
	}
	if wait := f.untilFull(now); wait > 0 {
		p.Spent.keep(id, usageOf(later(now, wait), f.refills(float64(f.limiter.Burst()))))
	}
}

// untilFull returns in how long the fallback is full.
func (f *fallback) untilFull(now time.Duration) time.Duration {
	wait := f.refills(float64(f.limiter.Burst()) - f.tokens(now))
	if wait >= float64(never) { // one float64 above the longest time
		return never
	}
	return time.Duration(wait)
}

// drain takes what a key had used before it was evicted, by its limit of then or of now, whichever
// is more.
func (f *fallback) drain(now time.Duration, u usage) {
	if wait, part := u.left(now); wait > 0 {
		burst := float64(f.limiter.Burst())
		f.debit(now, int64(min(max(float64(f.limiter.Limit())*wait.Seconds(), part*burst), burst)+1))
	}
}
