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
	parts := strings.Split(text, "|")
	to := [...]*int64{&r.Seq, &r.Grant, &r.Out, &r.Want, &r.End, &r.Debt}
	if len(parts) != len(to) {
		return Record{}, false
	}
	for i, part := range parts {
		x, err := strconv.ParseInt(part, 10, 64)
		if err != nil || x < 0 || x >= Whole {
			return Record{}, false
		}
		*to[i] = x
	}
	return r, true
}

// Terms is the limit that a token bucket refills by: that of its last writer. It is the field r.
type Terms struct {
	Cap, Tokens, Period int64
	Most                int64 // the largest cap ever, ≥ Cap
}

// ParseTerms reads cap/tokens/period, and /most if that is larger than cap. It reports false if the text is something else.
func ParseTerms(text string) (t Terms, ok bool) {
	parts := strings.Split(text, "/")
	to := [...]*int64{&t.Cap, &t.Tokens, &t.Period, &t.Most}
	if len(parts) < 3 || len(parts) > len(to) {
		return Terms{}, false
	}
	for i, part := range parts {
		x, err := strconv.ParseInt(part, 10, 64)
		if err != nil || x < 0 {
			return Terms{}, false
		}
		*to[i] = x
	}
	if len(parts) == len(to) && t.Most <= t.Cap || t.Period == 0 {
		return Terms{}, false
	}
	t.Most = max(t.Most, t.Cap)
	return t, true
}
