package tiered

import (
	"strings"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Algorithm selects how usage is counted: see docs/choosing.md.
type Algorithm lua.Algorithm

const (
	// TokenBucket admits at most Burst + Tokens·t/Per in any interval of length t. Choose it unless
	// a contract requires another one: it stores the least, its leases cost nothing except that
	// tokens held by one process are missing in the others, and its RetryAfter is when the refill
	// has brought the tokens.
	TokenBucket Algorithm = Algorithm(lua.TokenBucket)

	// FixedWindow admits at most Tokens in each window of length Per, so an interval that touches
	// two windows may see twice as many. It is meant for contracts and bills that count by windows.
	// A month? PerMonth and [Limit.Calendar] make windows of the calendar; a Per of 30 days does
	// not. See Policy.Calendar for whole minutes, hours and days.
	FixedWindow Algorithm = Algorithm(lua.FixedWindow)

	// SlidingLog admits at most Tokens, up to 100 000, in any interval of length Per, to the
	// microsecond. Each request that is not known to be denied is a call to Redis, which keeps a
	// record of each admitted one for as long as Per. It is meant for small limits such as logins
	// and codes.
	SlidingLog Algorithm = Algorithm(lua.SlidingLog)

	// SlidingWindow admits at most Tokens in any interval of length Per, also for large limits. A
	// key can have several ([Limit.And]). A used token comes back once Per is over, up to two
	// blocks late (Limit.Precision).
	SlidingWindow Algorithm = Algorithm(lua.SlidingWindow)
)

// String returns the name in words, as in "token bucket".
func (a Algorithm) String() string { return lua.Algorithm(a).String() }

// has reports whether a has a property.
func (a Algorithm) has(p lua.Property) bool { return lua.Algorithm(a).Has(p) }

// name returns the name in Go, as in TokenBucket.
func (a Algorithm) name() string {
	var name string
	for word := range strings.FieldsSeq(a.String()) {
		name += strings.ToUpper(word[:1]) + word[1:]
	}
	return name
}

// named returns the names of the algorithms that is reports of, as in "TokenBucket or
// SlidingWindow".
func named(is func(lua.Algorithm) bool) string {
	var names []string
	for _, a := range lua.Choices() {
		if is(a) {
			names = append(names, Algorithm(a).name())
		}
	}
	last := len(names) - 1
	if last < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// only is the rule that a setting is of algorithms with a property, which a is not.
func (a Algorithm) only(p lua.Property) string {
	with := named(func(a lua.Algorithm) bool { return a.BySeveral().Has(p) })
	return "only a " + with + " has it, and Algorithm is " + a.String()
}
