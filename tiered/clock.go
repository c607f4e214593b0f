package tiered

import (
	"slices"
	"sync"
	"time"
)

const (
	// clockWindow is how long a sample of a node's clock may be the best: one kept for ever would drift away, and then
	// every call would be late. Two windows of half the length make "the best of the last 5 to 10 s" cheap.
	clockWindow = 5 * time.Second

	// tripSamples and tripFew: the 99th percentile of the last 128 round trips, and what is assumed before there are 16.
	tripSamples = 128
	tripFew     = 16
	tripUnknown = 2 * time.Millisecond
)

// clock estimates a node's clock from its replies, and how long round trips take. The sample with the shortest round
// trip is the best: the reply's time lies somewhere within it. One that a later reply disproves is worth nothing:
// that clock was set.
type clock struct {
	mu        sync.Mutex
	best      [2]sample // of this window and of the one before
	windowEnd time.Duration

	last   sample // for steps
	wokeAt time.Duration

	trips [tripSamples]time.Duration
	n     int
	p99   time.Duration
}

// sample is what one reply tells: the node's clock was ahead of the process' by offset, ± half of trip.
type sample struct {
	known  bool
	offset int64 // µs of the node's clock at the base
	trip   time.Duration
	at     time.Duration // when the reply came
}

func newSample(sent, now time.Duration, server int64) sample {
	trip := now - sent
	return sample{known: true, offset: server - (sent + trip/2).Microseconds(), trip: trip, at: now}
}

// setSince reports by how much the node's clock was set between old and s: 0 when their round trips, or clocks that
// run at different rates, explain the difference. The rates of a fleet's clocks differ by less than a hundredth.
func (s sample) setSince(old sample) time.Duration {
	step := time.Duration(s.offset-old.offset) * time.Microsecond
	if !old.known || step.Abs() < standstill+(s.trip+old.trip)/2+(s.at-old.at).Abs()/100 {
		return 0
	}
	return step
}

// learn notes that a call sent at sent was answered now, with the node's clock in µs. It reports by how much that clock was
// set since the last reply, 0 for not at all.
func (c *clock) learn(sent, now time.Duration, server int64) (step time.Duration) {
	s := newSample(sent, now, server)
	c.mu.Lock()
	defer c.mu.Unlock()
	step = c.compare(s, sent)
	c.turn(now)
	c.keep(s)
	c.trips[c.n%tripSamples] = s.trip
	c.n++
	// Sorting 128 numbers takes about 2 µs: too much for each call, nothing for each sixteenth.
	if c.n >= tripFew && c.n%tripFew == 0 {
		sorted := slices.Clone(c.trips[:min(c.n, tripSamples)])
		slices.Sort(sorted)
		c.p99 = sorted[len(sorted)*99/100]
	}
	return step
}

// keep keeps s if it is the best of its window. What it disproves goes, however short its round trip was: deadlines
// by a clock that was set back since would lie too far ahead for a refund or a Reset to be taken.
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

// correct replaces the estimate: a call was late, so it was wrong. Like learn it reports a step.
func (c *clock) correct(sent, now time.Duration, server int64) (step time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := newSample(sent, now, server)
	c.best = [2]sample{s}
	c.windowEnd = now + clockWindow
	return c.compare(s, sent)
}

// compare reports by how much the node's clock was set since the last sample.
func (c *clock) compare(s sample, sent time.Duration) (step time.Duration) {
	if sent < c.last.at || sent < c.wokeAt {
		return 0 // older than the last, or the process' own clock stood still on the way
	}
	step = s.setSince(c.last)
	c.last = s
	return step
}

// woke notes that the process' clock stood still until now, and so is behind the node's by more than before.
func (c *clock) woke(now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wokeAt, c.last = now, sample{}
}

// turn begins a new window when the old one is over.
func (c *clock) turn(now time.Duration) {
	if now < c.windowEnd {
		return
	}
	c.best[1], c.best[0] = c.best[0], sample{}
	c.windowEnd = now + clockWindow
}

// at reports what the node's clock shows at t, in µs, or false while nothing is known.
func (c *clock) at(t time.Duration) (int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.best[0]
	if !s.known || c.best[1].known && c.best[1].trip < s.trip {
		s = c.best[1]
	}
	return s.offset + t.Microseconds(), s.known
}

// trip reports the 99th percentile of the round trips.
func (c *clock) trip() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n < tripFew {
		return tripUnknown
	}
	return c.p99
}
