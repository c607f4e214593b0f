package lua

import "fmt"

// Record is what a bucket knows of a process' lease. It is kept until End, under the field "p" +
// lease id.
type Record struct {
	Seq   int64 // of the last call that was executed
	Grant int64 // tokens that it granted
	Out   int64 // tokens that may still be spent: in escrow
	Want  int64 // that it asked for; at most 1 if a single token bucket refused it
	End   int64 // µs of the bucket's time: from here on nothing of it may be spent
	Debt  int64 // charged by this call, and by those whose reply was not accepted
}

// String is the record as it is stored.
func (r Record) String() string {
	return fmt.Sprintf("%d|%d|%d|%d|%d|%d", r.Seq, r.Grant, r.Out, r.Want, r.End, r.Debt)
}
