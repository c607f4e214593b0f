package fleet

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Record is one request, as a process writes it: unbuffered, so that it survives the process'
// death.
type Record struct {
	Before, After int64 // ns of the wall clock, the same for all processes of a machine
	Allowed       bool
	Reason        tiered.Reason
}

var recordSize = binary.Size(Record{})

func (r Record) bytes() []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, &r) // of a fixed size
	return b
}

func readRecords(b []byte) []Record {
	all := make([]Record, len(b)/recordSize)
	_, _ = binary.Decode(b, binary.LittleEndian, all) // as many as fit
	return all
}

// Within are the requests that were made from one time on and decided before another (ns of the
// wall clock).
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

// Report is how a process is, or how it was when it left. One that is killed leaves no report.
type Report struct {
	Stats tiered.Stats

	// Of the last report only.
	Lag        time.Duration // by how much the machine held the process up at most
	Lags       []Lag
	States     []State
	Keys       int    // kept before Close
	Heap       uint64 // bytes of live objects before Close
	Closing    string // what Close said, empty for nil
	CloseTime  time.Duration
	Refused    string // what Redis refused, empty for nothing
	Log        string // what the limiter logged, from WARN on
	Goroutines int    // after Close, more than before the Group was made
}

// Lag is by how much a sleep was too long: what is measured in real time has to allow for it.
type Lag struct {
	At, Over int64 // ns of the wall clock; ns
}

// State is a change of a breaker.
type State struct {
	At       int64 // ns of the wall clock
	Node, To string
}

// Quantile reports the value that a part of all does not exceed, 0 of nothing.
func Quantile(all []int64, part float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return time.Duration(sorted[int(part*float64(len(sorted)-1))])
}
