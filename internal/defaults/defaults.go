// Package defaults has the values of options that are 0, and the longest key, for what must know
// them beside package tiered. A user reads them at the fields, and in an error.
package defaults

import "time"

// The defaults of tiered.Options, and of the Period of a tiered.Lease.
const (
	Budget      = 20 * time.Millisecond // ten slow round trips of 2 ms; no user notices 20 ms
	Timeout     = 50 * time.Millisecond
	MaxKeys     = 100_000
	MaxInFlight = 64

	Period = 250 * time.Millisecond // four calls per second for each hot key
)

// MaxKeyLength is the longest key, in bytes.
const MaxKeyLength = 64 << 10

// Parts are the parts of a limit that processes may share, as files say them.
var Parts = map[string]float64{
	"off": 0, "1/8": 1. / 8, "1/4": 1. / 4, "3/8": 3. / 8, "1/2": 1. / 2, "5/8": 5. / 8, "3/4": 3. / 4,
}
