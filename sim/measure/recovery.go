package measure

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// recovery is what was admitted, and what the ideal bucket admits, after the last fault.
type recovery struct {
	from   time.Duration // the end of the last fault, or beyond the run
	limits [][]bin       // by limit and time
}

// bin is the tokens of 100 ms.
type bin struct{ admitted, ideal int64 }

const (
	binLength = 100 * time.Millisecond
	staysIn   = 0.05                         // of the ideal
	stays     = int(time.Second / binLength) // steps in which a rate must be near, besides the first

	// A rate is taken over as long as the ideal takes for enough tokens, within these bounds. Of n tokens chance
	// alone makes some √n more or less: of 400 that is the 20 which are 5 % of them.
	enough    = 400
	leastBins = int(time.Second / binLength)
	mostBins  = int(10 * time.Second / binLength)

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

// at returns the bin of a time, nil for one that is not kept.
func (r *recovery) at(at time.Duration, limit int) *bin {
	i := int((at - r.from) / binLength)
	if at < r.from || i >= maxBins {
		return nil
	}
	r.limits[limit] = grow(r.limits[limit], i)
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

// width returns the number of bins that a rate is taken over: as many as the ideal takes for enough tokens on average,
// and at most half of all, so that as many are left for it to stay.
func width(bins []bin) int {
	var sum int64
	for _, b := range bins {
		sum += b.ideal
	}
	wide := mostBins
	if sum > 0 {
		wide = int(min(float64(mostBins), math.Ceil(enough*float64(len(bins))/float64(sum))))
	}
	return max(leastBins, min(wide, len(bins)/2))
}

// alike reports whether as much was admitted as the ideal admits, within 5 % of it or chance.
func alike(admitted, ideal int64) bool {
	return math.Abs(float64(admitted-ideal)) <= max(1, staysIn*float64(ideal), math.Sqrt(float64(ideal)))
}

// time returns how long after the last fault the admitted rate of a limit, −1 for all, came to stay near the ideal,
// within a part that ends at to; −1 is never.
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
	wide := width(bins)
	row := 0 // consecutive rates that are near
	for i := 0; i+wide <= n; i++ {
		var sum bin
		for _, b := range bins[i : i+wide] {
			sum.admitted += b.admitted
			sum.ideal += b.ideal
		}
		if !alike(sum.admitted, sum.ideal) {
			row = 0
			continue
		}
		if row++; row == stays+1 {
			return time.Duration(i-stays) * binLength
		}
	}
	return -1
}
