package local

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	// Time constants of the estimate. It follows a rise within a few renewals, because missing
	// tokens make requests wait. It forgets slowly, because surplus tokens go back: with a fall of
	// 0.3 s there would be a fifth more calls (TestSizing).
	riseTime = 300 * time.Millisecond
	fallTime = time.Second

	// scarceTime replaces both while Redis has less than is asked for, because what a process
	// wanted a second ago then counts against those who want it now. Without it, a limit whose
	// demand moves each second is used to 0.92 (docs/internals/sizing.md).
	scarceTime = 100 * time.Millisecond

	// minInterval is the shortest interval over which a rate is measured.
	minInterval = time.Millisecond
)

// demand estimates how many tokens per second this process is asked for, with those that it
// refuses. The zero value has seen nothing. Invariant: rate is finite and ≥ 0.
type demand struct {
	rate   float64       // tokens/s
	at     time.Duration // when it was last brought up to date; 0 never
	offers int64         // tokens asked for in total by then
}

// sample brings the estimate up to date. offers is the tokens asked for in total so far; scarce
// says whether Redis had less than was asked for the last time. A sample counts at most cap tokens:
// more could not be granted anyway, and one flood must not size the next lease.
//
// It is an exponential average in continuous time: rate += (1 − e^(−Δ/θ))·(x − rate) for the rate x
// over the last Δ.
func (d *demand) sample(now time.Duration, offers, cap int64, scarce bool) {
	if d.at == 0 {
		d.at, d.offers = now, offers
		return
	}
	delta := now - d.at
	if delta < minInterval {
		return
	}
	x := float64(max(min(offers-d.offers, cap), 0)) / delta.Seconds() // more may be put back than was asked for
	theta := fallTime
	switch {
	case scarce:
		theta = scarceTime
	case x > d.rate:
		theta = riseTime
	}
	d.rate += -math.Expm1(-float64(delta)/float64(theta)) * (x - d.rate)
	d.at, d.offers = now, offers
}

// over reports the tokens expected in t.
func (d *demand) over(t time.Duration) float64 { return d.rate * t.Seconds() }

// maxCost is the largest cost of a single request of late, in tokens. It is 0 if none cost more
// than 1.
type maxCost struct{ atomic.Int64 }

// note raises it to n. Of two calls at the same time the lower cost may win: the low-water mark is
// then a little low.
func (c *maxCost) note(n int64) {
	if n > 1 && n > c.Load() {
		c.Store(n)
	}
}

// fade lowers it by an eighth.
func (c *maxCost) fade() {
	n := c.Load()
	c.Store(n - (n+7)/8)
}
