package tiered

import (
	"fmt"
)

// Algorithm selects how usage is counted: see docs/choosing.md.
type Algorithm uint8

const (
	// TokenBucket admits at most Burst + Tokens·t/Per in any interval of length t. Choose it unless a contract requires
	// another one: it stores the least, its leases cost nothing except that tokens held by one process are missing in
	// the others, and its RetryAfter is when the refill has brought the tokens.
	TokenBucket Algorithm = iota

	// FixedWindow admits at most Tokens in each window of length Per, so an interval that touches two windows may see
	// twice as many. It is meant for contracts and bills that count by windows. See Policy.Calendar.
	FixedWindow

	// SlidingLog admits at most Tokens, up to 100 000, in any interval of length Per, to the microsecond. Each request
	// that is not known to be denied is a call to Redis, which keeps a record of each admitted one for as long as Per.
	// It is meant for small limits such as logins and codes.
	SlidingLog

	// SlidingWindow admits at most Tokens in any interval of length Per, also for large limits. A key can have several
	// (Policy.Also). A used token comes back once Per is over, up to two blocks late (Limit.Precision).
	SlidingWindow
)

var algorithms = [...]string{
	TokenBucket: "token bucket", FixedWindow: "fixed window", SlidingLog: "sliding log",
	SlidingWindow: "sliding window",
}

// String returns the name in words, as in "token bucket".
func (a Algorithm) String() string {
	if int(a) < len(algorithms) {
		return algorithms[a]
	}
	return fmt.Sprintf("algorithm %d", uint8(a))
}
