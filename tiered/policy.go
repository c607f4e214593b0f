package tiered

import (
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// Policy says how much each key may use, and how that is counted.
//
// TestEveryFieldOfAPolicy in package policyfile has a table of its fields: where each is validated, drawn by the proofs,
// read, compared, shown and explained.
type Policy struct {
	// Name identifies the policy in Redis, in Stats and in Decisions: 1 to 64 of A–Z a–z 0–9 _ . -
	Name string

	// Limit is the limit of each key. Required.
	Limit Limit

	// Also are further limits on each key. A request needs all of them. There may be up to seven, for a TokenBucket
	// (each with a different Per) or a SlidingWindow. Unlimited and Blocked are not allowed here.
	Also []Limit

	// Algorithm selects how usage is counted. The default is TokenBucket.
	Algorithm Algorithm

	// Standing gives each process a standing share of every key's limit, so that a rarely used key is decided without
	// Redis, and never more than the limit is admitted. It is for a TokenBucket with a burst of at least 16 (with Also,
	// each limit, and Tokens of at least 8), and worth its cost if the burst is at least 24 times the number of
	// processes. A key to which PerKey gives a smaller burst has no share. A key that always meets the same process has
	// at least 7/8 of its limit there, and a request may cost up to 7/8 of the burst. To change Standing takes two
	// deploys: see docs/standing.md.
	Standing Standing

	// Calendar makes the windows of a FixedWindow begin at whole multiples of Limit.Per since 1970 in UTC, at the
	// same instant for all keys: every minute at :00, every day at midnight. Without it the windows of each key
	// begin at an instant of their own, so that not all clients come back at once.
	Calendar bool

	// PerKey, if not nil, returns the limit of a single key, instead of Limit. It cannot be used with Also. It is
	// called at a key's first use, and the result is kept as long as the process keeps the key, until
	// [Limiter.Refresh] or a change of the policy. The zero Limit means Policy.Limit. So does an invalid Limit or a
	// panic, and Stats counts both.
	//
	// PerKey runs on the goroutine of the request. Calls for one key never overlap, and other requests for that key
	// wait. Budget does not bound it, so it must look into memory and not into a database. It must not use this
	// Limiter. For a FixedWindow and a SlidingLog its limits must have the Per of Limit.
	PerKey func(key string) Limit

	// Plans are further limits by the name of a plan, such as "pro", up to 1000. [Use.WithPlan] says which one a request
	// has. Limit is that of requests without a plan, or with an unknown one, so it must not be Unlimited. Plans cannot
	// be used with Also, Standing or PerKey. A plan may be Unlimited or Blocked. For a FixedWindow and a SlidingLog its
	// limit must have the Per of Limit. A name has 1 to 64 bytes. A plan comes with the request, so its user has it from the
	// next request on. If only the key tells the plan, or with Standing, use PerKey with a map of your own.
	Plans map[string]Limit

	// FailMode decides if Redis does not answer and this process' lease is used up. The default is FailLocal.
	FailMode FailMode

	// Lease tunes how tokens are leased from Redis. The zero value follows demand.
	Lease Lease

	// MaxDebt is how many tokens below zero a key may go, because [Reservation.Settle] or [Use.Charge] took more
	// than it had, or because more was admitted while Redis did not answer. Its requests are refused until the refill
	// has paid that. 0 means one burst. Any other value must be at least the largest burst of Limit and Also, and at
	// most 2⁴⁰. Choose the sum of the highest costs of all requests of one key that may run at the same time. Debt
	// beyond MaxDebt is forgiven, and counted in Stats. Only for a TokenBucket. A larger burst of PerKey, of Plans or
	// of a request is the key's MaxDebt. The debt may exceed MaxDebt by what the key refills in one second,
	// because so much may be admitted beside Redis each time that it comes back.
	//
	// Set the same MaxDebt in all processes, because each call of a process with a smaller one forgives the debt beyond
	// its own.
	MaxDebt int64

	// Shadow tries the policy out. It decides and counts as usual and then admits, with Reason Shadowed if it would
	// have refused. Nothing is refused, not even an invalid key or cost.
	Shadow bool
}

// FailMode selects what decides while Redis does not answer. In every mode a lease is spent first, until its
// deadline. Its String is "fail-local", "fail-open" or "fail-closed".
type FailMode = local.FailMode

const (
	// FailLocal admits by this process' fallback: rate/N and burst/N, at least 1, for the N of PolicyStats.Processes. What
	// the process admits while Redis answers is subtracted from it too, so that of a busy key is not full when an outage
	// begins. A request that costs more than the fallback's burst is refused. When Redis answers again, what was admitted
	// is charged to the bucket, less the refill that the bucket lost during the outage because it was full.
	FailLocal = local.FailLocal

	// FailOpen admits everything and counts it. Afterwards it is charged like FailLocal.
	FailOpen = local.FailOpen

	// FailClosed refuses everything, with Reason Unavailable (HTTP 503).
	FailClosed = local.FailClosed
)

var failModes = [...]string{
	FailLocal: FailLocal.String(), FailOpen: FailOpen.String(), FailClosed: FailClosed.String(),
}

// NoLease is a Lease.Size that takes every token directly from Redis. Each request that is not known to be denied takes
// one round trip, and no tokens are held in a process.
const NoLease = -1

// Lease tunes how many tokens a process takes from Redis at once. A lease lives for four times Period, 1 s, or twice
// Options.Timeout, whichever is longest.
type Lease struct {
	// Size is the number of tokens of a lease: 0 follows demand, and NoLease never leases. It must be at most a quarter
	// of the burst, rounded up; with PerKey or Plans a larger size is reduced to a quarter of the key's burst. A crash
	// burns at most 2·Size tokens of each bucket, with Size 0 at most half of the burst, and what one request cost if
	// that is more than the lease. A key is leased only while that saves calls to Redis. With Size 0 its burst must
	// also be at least 50, and at least 12 times the cost of a request, because otherwise too many of the few tokens
	// would lie in one process while others need them.
	Size int64

	// Period is how long a lease should last at the present demand: 5 ms … 1 min; 0 means 250 ms. Redis gets about one
	// call per period, process and hot key. If a quarter of the burst is refilled in less time than Period, that time
	// is used instead. For a SlidingWindow it is at most an eighth of the window.
	Period time.Duration
}

const minPeriod, maxPeriod = 5 * time.Millisecond, time.Minute // of a lease

// clone returns p with a slice and a map of its own, because callers may write to theirs.
func (p Policy) clone() Policy {
	p.Also, p.Plans = slices.Clone(p.Also), maps.Clone(p.Plans)
	return p
}

var policyName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
