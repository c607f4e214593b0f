package fleet

import (
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Verdict is what a stream of requests came to.
type Verdict struct {
	Length          time.Duration // from the first request to the last one
	Admitted, Ideal int           // by the limiters, and by an ideal central bucket that is offered the same
	Offered         float64       // times the rate
	Worst           ideal.Excess  // the interval that admitted the most beyond the limit

	tolerance float64 // tokens
}

// Judge holds requests of one token against their limit.
func Judge(all []Record, limit tiered.Limit) (v Verdict) {
	perNano := float64(limit.Tokens) / float64(limit.Per)
	// Redis tells time in whole microseconds, so two readings may be 1 µs further apart than they were; and a grant may
	// be 10⁻⁹ token early.
	v.tolerance = perNano*float64(time.Microsecond) + 1e-6
	v.Worst.Over = -float64(limit.Burst)
	if len(all) == 0 {
		return v
	}
	all = slices.Clone(all)
	byTime(all)
	bucket := ideal.NewBucket(limit.Tokens, limit.Per, limit.Burst)
	var admissions []ideal.Admission
	origin := all[0].Before
	for _, r := range all {
		if bucket.Take(r.Before-origin, 1) {
			v.Ideal++
		}
		if r.Allowed {
			v.Admitted++
			admissions = append(admissions, ideal.Admission{Before: r.Before - origin, After: r.After - origin, Tokens: 1})
		}
	}
	v.Length = time.Duration(all[len(all)-1].Before - origin)
	v.Offered = float64(len(all)) / (float64(v.Length) * perNano)
	v.Worst = ideal.Worst(admissions, limit.Tokens, limit.Per, limit.Burst)
	return v
}

// Over is by how many tokens the worst interval exceeds the limit, beyond what the precision of the clocks explains; 0
// or less when it keeps it.
func (v Verdict) Over() float64 { return v.Worst.Over - v.tolerance }

// Utilisation is the part that was admitted of what an ideal bucket admits.
func (v Verdict) Utilisation() float64 { return float64(v.Admitted) / float64(v.Ideal) }
