package local

import (
	"fmt"
	"slices"
)

// FailMode decides when Redis does not answer and the lease is used up. [Bucket.ByFailMode] and
// [Hot.TryFailMode] decide by it, and outage counts by it.
type FailMode uint8

// The fail modes.
const (
	FailLocal  FailMode = iota // the fallback decides: this process' part of the limit
	FailOpen                   // everything is admitted, and counted
	FailClosed                 // nothing is admitted
)

var failModes = [...]string{FailLocal: "fail-local", FailOpen: "fail-open", FailClosed: "fail-closed"}

// String returns "fail-local", "fail-open" or "fail-closed".
func (m FailMode) String() string {
	if int(m) < len(failModes) {
		return failModes[m]
	}
	return fmt.Sprintf("fail mode %d", uint8(m))
}

// MarshalText returns what String does. An error means that m is none of the fail modes.
func (m FailMode) MarshalText() ([]byte, error) {
	if m > FailClosed {
		return nil, fmt.Errorf("tiered: FailMode is %d: must be FailLocal, FailOpen or FailClosed", uint8(m))
	}
	return []byte(m.String()), nil
}

// UnmarshalText reads what MarshalText returns: "fail-local", "fail-open" or "fail-closed".
func (m *FailMode) UnmarshalText(text []byte) error {
	i := slices.Index(failModes[:], string(text))
	if i < 0 {
		return fmt.Errorf("tiered: FailMode is %.80q: must be fail-local, fail-open or fail-closed", text)
	}
	*m = FailMode(i)
	return nil
}
