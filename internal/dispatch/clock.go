package dispatch

import (
	"slices"
	"sync"
	"time"
)

// Standstill is the smallest jump of a clock that counts as one: the smallest gap between the wall
// clock and the monotonic clock that shows a suspended machine, and the smallest step of a node's
// clock. Slewing changes a clock by at most 0.5 ms a second.
const Standstill = 50 * time.Millisecond

const (
	// clockWindow is how long a sample of a node's clock may be the best one. A sample that is kept
	// for ever drifts away, and then every call is late. Two windows of half the length make "the
	// best of the last 5 to 10 s" cheap.
	clockWindow = 5 * time.Second

	// maxTrips is the number of round trips of which the 99th percentile is taken.
	maxTrips = 128

	// With fewer than minTrips round trips the percentile is not known, and defaultTrip is assumed.
	minTrips    = 16
	defaultTrip = 2 * time.Millisecond
)

// clock estimates the clock of a node from its replies, and measures round trips. The sample with
// the shortest round trip is the best one, because the time in a reply lies somewhere within its
// round trip. A sample that a later reply disproves is dropped: the node's clock was set.
//
// The zero value knows nothing. All methods may be called concurrently.
type clock struct {
	mu sync.Mutex

	// best holds the best sample of this window and of the window before. best[0] is unknown from
	// the end of a window to the first reply after it.
	best      [2]sample
	windowEnd time.Duration

	last      sample        // the newest sample, with which the next one is compared
	doubt     doubt         // samples that contradict each other
	resumedAt time.Duration // the end of the process' last standstill: calls sent before it show no step

	trips [maxTrips]time.Duration // a ring: trips[n%maxTrips] is written next
	n     int                     // round trips so far
	p99   time.Duration           // of trips, at most minTrips round trips old; 0 while n < minTrips
}

// sample is what one reply shows: the node's clock was ahead of the process' by offset, ± half of
// trip.
type sample struct {
	known  bool
	offset int64 // the node's clock at the process' base, in µs
	trip   time.Duration
	at     time.Duration // when the reply came
}

func newSample(sent, now time.Duration, server int64) sample {
	trip := now - sent
	return sample{known: true, offset: server - (sent + trip/2).Microseconds(), trip: trip, at: now}
}

// setSince reports by how much the node's clock was set between old and s: 0 when their round
// trips, or clocks that run at different rates, explain the difference. The rates of a fleet's
// clocks differ by less than a hundredth.
func (s sample) setSince(old sample) time.Duration {
	step := time.Duration(s.offset-old.offset) * time.Microsecond
	if !old.known || step.Abs() < Standstill+(s.trip+old.trip)/2+(s.at-old.at).Abs()/100 {
		return 0
	}
	return step
}

// doubt is what a clock showed whose samples contradict each other: it was set, by however little, or
// replies come from two nodes, because a slot has moved. Until nothing more is heard of one of the
// two, the clock may show the time of either.
type doubt struct {
	from, to int64 // the node's clock at the process' base, in µs
	at       time.Duration
}

// doubts reports whether t is in the time of a doubt.
func (d *doubt) doubts(t time.Duration) bool { return d.to != 0 && t < d.at+2*clockWindow }

// contradicts notes whether s contradicts the samples before it.
func (c *clock) contradicts(s sample) {
	from, to, ok := c.agreed(s.at)
	base, slack := s.at.Microseconds(), (s.trip/2).Microseconds()+1
	if from, to = from-base, to-base; !ok || s.offset+slack >= from && s.offset-slack <= to {
		return
	}
	from, to = min(from, s.offset-slack), max(to, s.offset+slack)
	if d := &c.doubt; d.doubts(s.at) {
		from, to = min(from, d.from), max(to, d.to)
	}
	c.doubt = doubt{from, to, s.at}
}

// learn adds a sample: the reply came now to a call sent at sent, and server is the node's clock in
// µs. It reports by how much that clock was set since the last reply, or 0.
func (c *clock) learn(sent, now time.Duration, server int64) (step time.Duration) {
	s := newSample(sent, now, server)
	c.mu.Lock()
	defer c.mu.Unlock()
	step = c.compare(s, sent)
	c.contradicts(s)
	c.rotate(now)
	c.keep(s)
	c.trips[c.n%maxTrips] = s.trip
	c.n++
	// Sorting 128 numbers takes about 2 µs: too much for each call, nothing for each sixteenth.
	if c.n >= minTrips && c.n%minTrips == 0 {
		room := c.trips
		sorted := room[:min(c.n, maxTrips)]
		slices.Sort(sorted)
		c.p99 = sorted[len(sorted)*99/100]
	}
	return step
}

// keep keeps s if it is the best sample of its window. It drops the samples that s disproves,
// however short their round trips were: by the time of a clock that was set back since, deadlines
// would lie too far ahead, and Redis would accept neither a refund nor a Reset.
func (c *clock) keep(s sample) {
	for _, old := range c.best {
		if step := s.setSince(old); step != 0 {
			if step > 0 && s.at-s.trip < old.at {
				return // both calls were under way when the clock was set. The earlier time errs on the safe side
			}
			c.best = [2]sample{}
		}
	}
	if !c.best[0].known || s.trip < c.best[0].trip {
		c.best[0] = s
	}
}

// correct replaces the estimate by this reply's. The call was late, so the estimate was wrong. Like
// learn it reports a step.
func (c *clock) correct(sent, now time.Duration, server int64) (step time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := newSample(sent, now, server)
	c.contradicts(s)
	c.best = [2]sample{s}
	c.windowEnd = now + clockWindow
	return c.compare(s, sent)
}

// compare reports by how much the node's clock was set since the last sample.
func (c *clock) compare(s sample, sent time.Duration) (step time.Duration) {
	if sent < c.last.at || sent < c.resumedAt {
		return 0 // older than the last, or the process' own clock stood still on the way
	}
	step = s.setSince(c.last)
	c.last = s
	return step
}

// resume tells the clock that the process' own clock stood still until now, so the node's is ahead
// by more than before.
func (c *clock) resume(now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resumedAt, c.last = now, sample{}
}

// rotate begins a new window if the old one is over.
func (c *clock) rotate(now time.Duration) {
	if now < c.windowEnd {
		return
	}
	c.best[1], c.best[0] = c.best[0], sample{}
	c.windowEnd = now + clockWindow
}

// at reports what the node's clock shows at t, in µs. It reports false if no reply has come yet.
func (c *clock) at(t time.Duration) (int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.best[0]
	if !s.known || c.best[1].known && c.best[1].trip < s.trip {
		s = c.best[1]
	}
	return s.offset + t.Microseconds(), s.known
}

// bounds reports between which times the node's clock is at t, in µs. It reports false if no reply
// has come yet.
func (c *clock) bounds(t time.Duration) (from, to int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from, to, ok = c.agreed(t)
	if d := &c.doubt; d.doubts(t) {
		base, slack := t.Microseconds(), (t-d.at).Abs().Microseconds()/100
		from, to = min(from, d.from+base-slack), max(to, d.to+base+slack)
	}
	return from, to, ok
}

// agreed reports between which times the best samples say that the clock is at t.
func (c *clock) agreed(t time.Duration) (from, to int64, ok bool) {
	for _, s := range c.best {
		if !s.known {
			continue
		}
		at, slack := s.offset+t.Microseconds(), (s.trip/2+(t-s.at).Abs()/100).Microseconds()+1
		if !ok {
			from, to, ok = at-slack, at+slack, true
		}
		from, to = max(from, at-slack), min(to, at+slack)
	}
	return from, to, ok && from <= to
}

// roundTrip reports the 99th percentile of the last 128 round trips, or 2 ms if there were fewer
// than 16.
func (c *clock) roundTrip() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n < minTrips {
		return defaultTrip
	}
	return c.p99
}
