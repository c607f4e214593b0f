package harness

import (
	"cmp"
	"slices"
	"time"
)

// FullestWindow reports the most that were surely admitted within one aligned window of length d (they begin at multiples of d
// since 1970), requests of one token. A request that straddles an edge may belong to either and is not counted.
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

// FullestInterval reports the most that were surely admitted within any interval of length d: made after it began and decided
// before it ended.
func FullestInterval(all []Record, d time.Duration) int {
	var admitted []Record
	for _, r := range all {
		if r.Allowed {
			admitted = append(admitted, r)
		}
	}
	byTime(admitted)
	ends := slices.Clone(admitted)
	slices.SortFunc(ends, func(a, b Record) int { return cmp.Compare(a.After, b.After) })
	// Of an interval that begins with the i-th request: those that ended in it, less those that ended in it and began before.
	most, end := 0, 0
	for i, first := range admitted {
		for end < len(ends) && ends[end].After < first.Before+int64(d) {
			end++
		}
		// All of admitted[:i] began before. Nearly all of them ended before the interval does too: those that did not are few.
		early := i
		for j := i - 1; j >= 0 && j >= i-1000; j-- {
			if admitted[j].After >= first.Before+int64(d) {
				early--
			}
		}
		most = max(most, end-early)
	}
	return most
}
