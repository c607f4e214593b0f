package lua

import (
	"fmt"
	"strconv"
	"strings"
)

// Record is what a bucket knows of a process' lease. It is kept until End, under the field "p" + lease id.
type Record struct {
	Seq   int64 // of the last call that was executed
	Grant int64 // tokens that it granted
	Out   int64 // tokens that may still be spent: in escrow
	Want  int64 // that it asked for
	End   int64 // µs of the bucket's time: from here on nothing of it may be spent
	Debt  int64 // charged by this call, and by those whose reply was not accepted
}

// String is the record as it is stored.
func (r Record) String() string {
	return fmt.Sprintf("%d|%d|%d|%d|%d|%d", r.Seq, r.Grant, r.Out, r.Want, r.End, r.Debt)
}

// ParseRecord reads a record. It reports false if the text is none.
func ParseRecord(text string) (r Record, ok bool) {
	to := []*int64{&r.Seq, &r.Grant, &r.Out, &r.Want, &r.End, &r.Debt}
	if parseNumbers(text, "|", to) != len(to) {
		return Record{}, false
	}
	return r, true
}

// Terms is the limit that governs a token bucket. It is the field r.
type Terms struct {
	Cap, Tokens, Period int64
	Most                int64 // the largest cap ever, ≥ Cap
}

// ParseTerms reads cap/tokens/period, and /most if that is larger than cap. It reports false if the text is something
// else.
func ParseTerms(text string) (t Terms, ok bool) {
	n := parseNumbers(text, "/", []*int64{&t.Cap, &t.Tokens, &t.Period, &t.Most})
	if n < 3 || n == 4 && t.Most <= t.Cap || t.Period == 0 {
		return Terms{}, false
	}
	t.Most = max(t.Most, t.Cap)
	return t, true
}

// parseNumbers reads whole numbers that a script takes, at most as many as there is room for, and reports how many
// there are: 0 if the text is something else.
func parseNumbers(text, separator string, to []*int64) int {
	parts := strings.Split(text, separator)
	if len(parts) > len(to) {
		return 0
	}
	for i, part := range parts {
		x, err := strconv.ParseInt(part, 10, 64)
		if err != nil || x < 0 || x >= Whole {
			return 0
		}
		*to[i] = x
	}
	return len(parts)
}
