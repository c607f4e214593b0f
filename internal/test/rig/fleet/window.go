package fleet

import (
	"slices"
	"time"
)

// FullestWindow reports the most that were surely admitted within one aligned window of length d (they begin at
// multiples of d since 1970), requests of one token. A request that straddles an edge may belong to either and is not
// counted.
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

// FullestInterval reports the most that were surely admitted within any interval of length d: made after it began and
// decided before it ended. Some fullest interval begins with a request that was admitted.
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
