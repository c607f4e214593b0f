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

// comesBack is the longest until what was granted to a request that did not get the answer in time
// is given back: its answer may come much later on a busy machine, and the next call tells of it.
const comesBack = 2 * time.Second

// Judge holds requests of one token against their limit. A request that got no answer in time may
// have been granted a token, which comes back: see docs/internals/proof.md.
func Judge(all []Record, limit tiered.Limit) (v Verdict) {
	perNano := float64(limit.Tokens) / float64(limit.Per)
	// Redis tells time in whole microseconds, so two readings may be 1 µs further apart than they
	// were; and a grant may be 10⁻⁹ token early.
	v.tolerance = perNano*float64(time.Microsecond) + 1e-6
	v.Worst.Over = -float64(limit.Burst)
	if len(all) == 0 {
		return v
	}
	all = slices.Clone(all)
	byTime(all)
	bucket := ideal.NewBucket(limit.Tokens, limit.Per, limit.Burst)
	var admissions []ideal.Admission
	var credits []ideal.Credit
	origin := all[0].Before
	for _, r := range all {
		if bucket.Take(r.Before-origin, 1) {
			v.Ideal++
		}
		if r.Allowed {
			v.Admitted++
			admissions = append(admissions, ideal.Admission{Before: r.Before - origin, After: r.After - origin, Tokens: 1})
		} else if r.Reason == tiered.Unavailable {
			credits = append(credits, ideal.Credit{From: r.Before - origin, To: r.After - origin + int64(comesBack), Tokens: 1})
		}
	}
	v.Length = time.Duration(all[len(all)-1].Before - origin)
	v.Offered = float64(len(all)) / (float64(v.Length) * perNano)
	v.Worst = ideal.WorstNet(admissions, credits, limit.Tokens, limit.Per, limit.Burst)
	return v
}

// Over is by how many tokens the worst interval exceeds the limit, beyond what the precision of the
// clocks explains; 0 or less when it keeps it.
func (v Verdict) Over() float64 { return v.Worst.Over - v.tolerance }

// Utilisation is the part that was admitted of what an ideal bucket admits.
func (v Verdict) Utilisation() float64 { return float64(v.Admitted) / float64(v.Ideal) }

// FullestWindow reports the most that were surely admitted within one aligned window of length d
// (they begin at multiples of d since 1970), requests of one token. A request that straddles an
// edge may belong to either and is not counted.
func FullestWindow(all []Record, d time.Duration) int {
	counts, most := map[int64]int{}, 0
	for _, r := range all {
		if k := r.Before / int64(d); r.Allowed && k == r.After/int64(d) {
			counts[k]++
			most = max(most, counts[k])
		}
	}
	return most
}

// FullestInterval reports the most that were surely admitted within any interval of length d: made
// after it began and decided before it ended. Some fullest interval begins with a request that was
// admitted.
func FullestInterval(all []Record, d time.Duration) (most int) {
	all = slices.Clone(all)
	byTime(all)
	for i, first := range all {
		if !first.Allowed {
			continue
		}
		end, n := first.Before+int64(d), 0
		for _, r := range all[i:] {
			if r.Before >= end {
				break
			}
			if r.Allowed && r.After < end {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}
