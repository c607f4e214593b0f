package local

import (
	"math"
	"time"
)

const (
	// Time constants of the estimate. It follows a rise within a few renewals, because tokens that are missing make
	// requests wait, and forgets slowly, because tokens that are left over go back. With a rise of 0.15 s one request in a
	// thousand is refused at 0.95 of a limit, with 0.6 s twice as many wait where the demand moves; with a fall of 0.3 s calls
	// are a fifth more (docs/performance.md).
	riseTime = 300 * time.Millisecond
	fallTime = time.Second

	// scarceTime is that of both while Redis has less than is asked for. What a process wanted a second ago then counts
	// against those who want it now. Where 80 % of 3 times 2000/s moves to another of 10 processes each second, 0.998 of the
	// limit is used, without it 0.924 (docs/performance.md).
	scarceTime = 100 * time.Millisecond

	// minSample is the shortest interval over which a rate means anything.
	minInterval = time.Millisecond
)

// demand estimates how many tokens per second this process is asked for, refused ones included. The zero value has seen
// nothing.
type demand struct {
	rate   float64       // tokens/s
	at     time.Duration // when it was last brought up to date; 0 never
	offers int64         // offered in total by then
}

// sample brings the estimate up to date, given the tokens offered in total since ever, and whether Redis had less than was
// asked for the last time. A sample counts at most cap tokens: more could not be granted anyway, and one flood must not size
// the next lease.
//
// It is an exponential average in continuous time: rate += (1 − e^(−Δ/θ))·(x − rate) for the rate x over the last Δ.
func (d *demand) sample(now time.Duration, offers, cap int64, scarce bool) {
	if d.at == 0 {
		d.at, d.offers = now, offers
		return
	}
	delta := now - d.at
	if delta < minInterval {
		return
	}
	x := float64(max(min(offers-d.offers, cap), 0)) / delta.Seconds() // what was put back may outweigh what was offered
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
