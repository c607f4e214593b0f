package fleet

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Record is one request, as a process writes it: 17 bytes, unbuffered, so that it survives the process' death.
type Record struct {
	Before, After int64 // ns of the wall clock, the same for all processes of a machine
	Allowed       bool
	Reason        tiered.Reason
}

// recordSize: two times, and a byte of the reason in whose highest bit lies Allowed.
const recordSize = 17

func (r Record) bytes() []byte {
	b := make([]byte, 0, recordSize)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Before))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.After))
	last := byte(r.Reason)
	if r.Allowed {
		last |= 0x80
	}
	return append(b, last)
}

func readRecords(b []byte) (all []Record) {
	for ; len(b) >= recordSize; b = b[recordSize:] {
		all = append(all, Record{
			Before:  int64(binary.LittleEndian.Uint64(b)),
			After:   int64(binary.LittleEndian.Uint64(b[8:])),
			Allowed: b[16]&0x80 != 0,
			Reason:  tiered.Reason(b[16] &^ 0x80),
		})
	}
	return all
}

// Within are the requests that were made from one time on and decided before another (ns of the wall clock).
func Within(all []Record, from, to int64) (some []Record) {
	for _, r := range all {
		if r.Before >= from && r.After < to {
			some = append(some, r)
		}
	}
	return some
}

// byTime sorts records by when the requests were made.
func byTime(all []Record) {
	slices.SortFunc(all, func(a, b Record) int { return cmp.Compare(a.Before, b.Before) })
}

// Report is what a process says at its end. One that is killed says nothing.
type Report struct {
	Stats  tiered.Stats
	States []State
	Lags   []Lag
	Heap   uint64 // bytes of live objects at the end, before Close

	Closing    string // what Close said, empty for nil
	Refused    string // what Redis refused, empty for nothing
	Goroutines int    // after Close, more than before the Group was made
}

// State is a change of a breaker.
type State struct {
	At       int64 // ns of the wall clock
	Node, To string
}

// Lag is by how much a sleep of 1 ms was too long: what the machine adds to every time that is measured on it.
type Lag struct {
	At, Over int64 // ns of the wall clock; ns
}

// LongestLag reports the longest lag of the process.
func (r Report) LongestLag() time.Duration {
	var longest int64
	for _, l := range r.Lags {
		longest = max(longest, l.Over)
	}
	return time.Duration(longest)
}

// Quantile reports the value that a part of all does not exceed, 0 of nothing.
func Quantile(all []int64, part float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return time.Duration(sorted[int(part*float64(len(sorted)-1))])
}
