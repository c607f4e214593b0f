package lua

import "time"

// The limits of what every script accepts; times in µs. Validation of policies uses the same
// constants, so that no call of a policy that it accepts is refused. With all of them an instant
// plus a period stays below Whole.
const (
	Whole = int64(1) << 53 // from here on a double skips whole numbers: every argument is less

	MostTokens = 1 << 40 // a cap, tokens per period, and what a lease holds: sums over thousands of leases stay exact
	MostLimits = 8       // of a bucket

	MostPolicies = 512 // places that a process announces: at most 17 kB, and 2 ms of Redis' time, in each of its reports

	LongestPeriod = 1 << 52 // 142 years; levels are doubles, and the longest period of a window is less
	LongestLease  = 1 << 50 // 35 years

	MostSpan      = 512     // blocks of a SlidingWindow
	LongestWindow = 1 << 51 // all of them together
)

// FingerprintDigits is the length of a fingerprint in what a process announces, in hex digits. With
// 64 bits, of a million policies no two have the same one.
const FingerprintDigits = 16

// AnnouncedDigits is the length of a policy in what a process announces: a fingerprint of its name,
// one of its limits, and two digits for its standing shares.
const AnnouncedDigits = 2*FingerprintDigits + 2

// Used says that some process used its shares of so many eighths of a policy's limits, since when
// and until when at least, by the node's clock in µs. Policy is its index in what was announced.
type Used struct{ Policy, Eighths, From, To int64 }

// LongestKept bounds for how long a node keeps which parts were in use, in s: 136 years.
const LongestKept = 1 << 32

// MostShared is the largest part of a limit that the processes may share, in eighths.
const MostShared = 6

// TableStep is by how much the time of the table of standing shares goes on at most from one call
// to the next. A record lives that much longer than the right of its member, so that a clock of
// Redis that is set forward ends no right early.
const TableStep = 5 * time.Second

// The overflow of a token bucket counts tokens from OverflowStart, and stops at OverflowEnd.
const (
	OverflowStart = 1 << 40
	OverflowEnd   = 1 << 52
)

// TermsHold is how long the larger of two limits of one token bucket governs after its last use. A
// process that is denied asks again after 5.3 s at most, and one over a slow limit after 4 s. So
// one of its calls may be lost.
const TermsHold = 10 * time.Second

// MaxBack is the longest step back of a node's clock that a bucket waits out. A longer one is
// believed at once, without credit. One second is above what NTP slews, and below what an operator
// would notice as a limiter that stands still.
const MaxBack = time.Second
