package local

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// sizing says whether a lease pays and how large it should be, for a demand and a node as they are
// now.
type sizing struct {
	by     *Policy       // the limit that governs
	period time.Duration // T: how long a lease should last
	need   float64       // tokens expected in one period
	low    int64         // low-water mark: a pot at or under it is renewed
	mean   float64       // mean cost of a request, tokens, about
	most   int64         // tokens that this process may hold: see Bucket.mayHold
	small  bool          // the burst, or what this process may hold of it, is too little to be leased
}

// leastRequests is the smallest burst, in requests, that a key is leased from. Policy.MinBurst is
// the same in tokens.
const leastRequests = 12

// size works out a sizing. t is how long a lease should last, trip is the 99th percentile of the
// node's round trips, cost is the largest cost of late, grant is that of the last lease, and most
// is what this process may hold.
//
// The low-water mark covers what is used in a round trip, with three standard deviations of a
// Poisson stream to spare; the largest single cost; and a quarter of the last grant, because one
// call in 100 takes longer than trip: without that, up to 300 of a million decisions would wait
// (TestSizing). The mark is a quarter of the burst at most, so that one expensive
// request does not make a process hoard. It is a quarter of what this process may hold, too,
// because otherwise the process would ask for each token near the end of a window.
func size(p *Policy, d *demand, t, trip time.Duration, cost, grant, most int64) sizing {
	flight := d.over(trip)
	low := int64(math.Ceil(flight + 3*math.Sqrt(flight)))
	if cost > 1 {
		low = max(low, cost)
	}
	low = min(max(low, grant/4), p.quarter(), most/4)
	mean := max(float64(cost)/2, 1) // where all costs up to the largest are equally frequent
	small := p.small(mean) || float64(most) < 2*mean
	return sizing{by: p, period: t, need: d.over(t), low: low, mean: mean, most: most, small: small}
}

// small reports whether the burst is too small to be leased from, at requests of mean tokens each.
func (p *Policy) small(mean float64) bool {
	return p.MinBurst > 0 && float64(p.Cap) < max(float64(p.MinBurst), leastRequests*mean)
}

// heldPart is the part of its even share of what is left that a process may hold, one in heldPart.
// If less were held, there would be more calls. If more, more would be refused that the window has
// room for, when the requests move to another process: 6 of 100 with 2, less than 5 with 3
// (docs/internals/sizing.md).
const heldPart = 3

// mayHold reports the most tokens that a process of a fleet should hold of a slow limit: one in
// heldPart of its even part of what is left, here and in Redis. So when Redis has no more, all
// processes together hold a third of what was left a lease ago at most. Others are refused
// meanwhile. What comes back within two periods it may hold in any case: that is missed for no
// longer, and a sliding window that is full would be asked for each token.
func (p *Policy) mayHold(fleet int32, left int64, period time.Duration) int64 {
	most := p.mayBurn()
	if fleet <= 1 || !p.slow() {
		return most
	}
	part := left / (heldPart * int64(fleet))
	if !p.Call.Algorithm.Has(lua.Edges) {
		part = max(part, int64(p.refill(2*period)))
	}
	return min(most, part)
}

// burntPart is the part of a window of the calendar that a process may hold, one in burntPart,
// unless the size of a lease is set. What a killed process held is missed until the window ends.
const burntPart = 200

// mayBurn reports the most tokens that a process should hold because it may be killed. With fewer
// than a lease needs it has none: then others would be refused for what is one call.
func (p *Policy) mayBurn() int64 {
	if p.Size > 0 || p.At == nil {
		return unlimited
	}
	if most := p.Cap / burntPart; most >= leastRequests {
		return most
	}
	return 0
}

// pays reports whether leasing is worth its calls. It begins when a period brings two requests, and
// ends when a period brings less than one. If it began at one, a small burst would lie in processes
// that do not need it, and 7 of 100 requests would be refused that an ideal bucket admits
// (TestSizing).
func (s sizing) pays(leasing bool) bool {
	if s.small {
		return false
	}
	if leasing {
		return s.need >= s.mean
	}
	return s.need >= 2*s.mean
}

// farPeriod is the shortest period by which it is judged whether a lease pays, and when it is idle,
// if answers come when those who asked have left. Then Redis decides only about leased tokens, and
// other requests wait for the whole Budget in vain. So one request in the shortest life of a lease
// is enough (docs/internals/sizing.md).
const farPeriod = minTTL

// paysFar reports whether leasing is worth its calls if answers come when those who asked have
// left.
func (s sizing) paysFar(d *demand) bool {
	return !s.small && d.over(max(s.period, farPeriod)) >= s.mean
}

// want reports the tokens to ask for if the pot holds pot, those who wait need waiting, and the
// call makes no sense with fewer than least. What callers that wait need may be more than this
// process may hold.
func (s sizing) want(pot, waiting, least int64) int64 {
	lease := s.by.Size
	if lease == 0 {
		lease = int64(math.Ceil(min(s.need, float64(s.by.Cap))))
	}
	want := max(lease+s.low-pot, waiting-pot)
	return max(least, min(want, s.by.quarter(), max(s.most-pot, waiting-pot)))
}

// scarcePeriod is the period of a lease of a key over its limit: Redis had less than was asked for
// the last time. That is t, but longer for a slow limit, if this process is asked for at least one
// and a half times its part. Then it lasts until the refill has brought two tokens for each
// process. So a process asks once for two tokens, and not for each.
func (p *Policy) scarcePeriod(t time.Duration, d *demand, fleet float64) time.Duration {
	if !p.Call.Algorithm.Has(lua.OneLevel) || p.Each != nil || p.Size > 0 {
		return t
	}
	long := min(p.wait(2*fleet), p.wait(float64(p.Cap)/4), maxOverdrawn)
	if long <= t || d.over(long)*fleet < 1.5*p.refill(long) || d.over(long) < 2 {
		return t
	}
	return long
}
