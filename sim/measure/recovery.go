package measure

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// recovery is what was admitted, and what the ideal admits, after the last fault.
type recovery struct {
	from   time.Duration // the end of the last fault, or beyond the run
	limits [][]bin       // by limit and time
}

// bin is the tokens of 100 ms.
type bin struct{ admitted, ideal int64 }

const (
	binLength = 100 * time.Millisecond
	rateBins  = int(time.Second / binLength)     // what a rate is taken over
	stayBins  = int(2 * time.Second / binLength) // how long it must stay
	staysIn   = 0.05                             // of the ideal

	// maxBins bounds the memory: what takes longer than an hour to recover has not.
	maxBins = int(time.Hour / binLength)
)

func newRecovery(s *scenario.Scenario) recovery {
	_, last := faultsSpan(s)
	r := recovery{from: last, limits: make([][]bin, len(s.Limits))}
	if last >= time.Duration(s.Length) {
		r.from = forever
	}
	return r
}

// at is the bin of a time, nil for one that is not kept.
func (r *recovery) at(at time.Duration, limit int) *bin {
	i := int((at - r.from) / binLength)
	if at < r.from || i >= maxBins {
		return nil
	}
	r.limits[limit] = grown(r.limits[limit], i)
	return &r.limits[limit][i]
}

func (r *recovery) ideal(at time.Duration, limit int, tokens int64) {
	if b := r.at(at, limit); b != nil {
		b.ideal += tokens
	}
}

func (r *recovery) admitted(at time.Duration, limit int, tokens int64) {
	if b := r.at(at, limit); b != nil {
		b.admitted += tokens
	}
}

// time is how long after the last fault the admitted rate of a limit, −1 for all, came to stay near the ideal, within a part
// that ends at to; −1 is never.
func (r *recovery) time(limit int, to time.Duration) time.Duration {
	if to <= r.from {
		return -1
	}
	n := min(int((to-r.from)/binLength), maxBins)
	bins := make([]bin, n)
	for l, from := range r.limits {
		if limit >= 0 && l != limit {
			continue
		}
		for i := range min(n, len(from)) {
			bins[i].admitted += from[i].admitted
			bins[i].ideal += from[i].ideal
		}
	}
	near := 0 // seconds in a row
	for i := 0; i+rateBins <= n; i++ {
		var sum bin
		for _, b := range bins[i : i+rateBins] {
			sum.admitted += b.admitted
			sum.ideal += b.ideal
		}
		if math.Abs(float64(sum.admitted-sum.ideal)) > max(1, staysIn*float64(sum.ideal)) {
			near = 0
			continue
		}
		if near++; near == stayBins-rateBins+1 {
			return time.Duration(i-near+1) * binLength
		}
	}
	return -1
}
