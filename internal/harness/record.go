package harness

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Record is one request, as a process writes it: unbuffered, so that it survives the process' death.
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

// Report is how a process is, or how it was when it left. One that is killed leaves no report.
type Report struct {
	Stats tiered.Stats
	Busy  bool          // calls are under way, if Job.Verbose
	Lag   time.Duration // by how much the machine held the process up at most

	// Of the last report only.
	States  []State
	Lags    []Lag
	Keys    int    // kept before Close
	Closing string // what Close said, empty for nil
	Refused string // what Redis refused, empty for nothing
	Log     string // what the limiter logged, from WARN on

	// With Job.Dir only.
	Heap       uint64 // bytes of live objects before Close
	Goroutines int    // after Close, more than before the Group was made
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
