package invariant

import (
	"strconv"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// ParseRecord reads a record. It reports false if the text is none.
func ParseRecord(text string) (r lua.Record, ok bool) {
	to := []*int64{&r.Seq, &r.Grant, &r.Out, &r.Want, &r.End, &r.Debt}
	if parseNumbers(text, "|", to) != len(to) {
		return lua.Record{}, false
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
		if err != nil || x < 0 || x >= lua.Whole {
			return 0
		}
		*to[i] = x
	}
	return len(parts)
}
