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
// trip is the best: the reply's time lies somewhere within it.
type clock struct {
	mu        sync.Mutex
	best      [2]sample // of this window and of the one before
	windowEnd time.Duration

	last   sample // for steps
	lastAt time.Duration
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
}

// learn notes that a call sent at sent was answered now, with the node's clock in µs. It reports by how much that clock was
// set since the last reply, 0 for not at all.
func (c *clock) learn(sent, now time.Duration, server int64) (step time.Duration) {
	trip := now - sent
	s := sample{known: true, trip: trip, offset: server - (sent + trip/2).Microseconds()}
	c.mu.Lock()
	defer c.mu.Unlock()
	step = c.compare(s, sent, now)
	c.turn(now)
	if !c.best[0].known || trip < c.best[0].trip {
		c.best[0] = s
	}
	c.trips[c.n%tripSamples] = trip
	c.n++
	// Sorting 128 numbers takes about 2 µs: too much for each call, nothing for each sixteenth.
	if c.n >= tripFew && c.n%tripFew == 0 {
		sorted := slices.Clone(c.trips[:min(c.n, tripSamples)])
		slices.Sort(sorted)
		c.p99 = sorted[len(sorted)*99/100]
	}
	return step
}

// correct replaces the estimate: a call was late, so it was wrong. Like learn it reports a step.
func (c *clock) correct(sent, now time.Duration, server int64) (step time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.best = [2]sample{{known: true, trip: now - sent, offset: server - (sent + (now-sent)/2).Microseconds()}}
	c.windowEnd = now + clockWindow
	return c.compare(c.best[0], sent, now)
}

// compare reports how much further apart the node's clock and the process' are than in the last sample, when neither the
// round trips nor clocks that run at different rates explain it: those of a fleet differ by less than a hundredth.
func (c *clock) compare(s sample, sent, now time.Duration) (step time.Duration) {
	if sent < c.lastAt || sent < c.wokeAt {
		return 0 // older than the last, or the process' own clock stood still on the way
	}
	old, drift := c.last, (now-c.lastAt)/100
	c.last, c.lastAt = s, now
	if !old.known {
		return 0
	}
	step = time.Duration(s.offset-old.offset) * time.Microsecond
	if step.Abs() < standstill+(s.trip+old.trip)/2+drift {
		return 0
	}
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
