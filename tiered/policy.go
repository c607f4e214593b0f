package tiered

import (
	"maps"
	"regexp"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// Policy says how much each key may use, and how that is counted.
type Policy struct { // a new field has a row in TestEveryFieldOfAPolicy of package policyfile
	Name  string // identifies the policy in Redis, in Stats and in Decisions: 1 to 64 of A–Z a–z 0–9 _ . -
	Limit Limit  // of each key; required. [Limit.And] joins several

	Algorithm Algorithm // selects how usage is counted

	// Standing is the part of each key's limit that the processes share, a multiple of 1/8 from 0
	// to 3/4. Each process has a standing share of every key, so a rarely used key is decided
	// without Redis, and never more than the limit is admitted. It is for a TokenBucket or a
	// FixedWindow with a Per, and worth its cost if Standing · burst is at least 3 times the number
	// of processes. A key that always meets the same process has at least 1 − Standing of its limit
	// there, and so much of the burst a request may cost. Choose 1/2 if requests are spread over
	// the processes, and 1/8 if clients stick to one. It is changed like a limit: see
	// docs/standing.md.
	Standing float64

	// Calendar makes the windows of a FixedWindow begin at whole multiples of Limit.Per since 1970
	// in UTC: every minute at :00, every day at midnight. Without it each key's begin at an instant
	// of its own, so that not all clients come back at once. Months, and days of other time zones,
	// are Limit.Calendar.
	Calendar bool

	// PerKey, if not nil, returns the limit of a single key, instead of Limit. It is called at a
	// key's first use, and the result is kept as long as the process keeps the key, until
	// [Limiter.Refresh] or a change of the policy. Once requests have carried limits
	// ([Use.WithLimit]), it is called for each that carries none, also concurrently. The zero Limit
	// means Policy.Limit. So does an invalid one or a panic, and Stats counts both. For a
	// FixedWindow and a SlidingLog its limits must have the Per of Limit. If Limit is several, each
	// is as many, with the same Per and Precision.
	//
	// PerKey runs on the goroutine of the request, and other requests for that key wait. Calls for
	// one key never overlap. Budget does not bound it, so it must look into memory and not into a
	// database. It must not use this Limiter.
	PerKey func(key string) Limit

	// Plans are up to 1000 further limits by the name of a plan, 1 to 64 bytes such as "pro".
	// [Use.WithPlan] says which one a request has, so a user's new plan holds from the next request
	// on. Requests without a plan, or with an unknown one, go by Limit, which must not be
	// Unlimited; a plan may be Unlimited or Blocked. Else it must be as PerKey says. A key to which
	// PerKey gives a limit goes by that. If only the key tells the plan, use PerKey with a map of
	// your own.
	Plans map[string]Limit

	FailMode FailMode // decides if Redis does not answer and this process' lease is used up
	Lease    Lease    // tunes how tokens are leased from Redis; the zero value follows demand

	// MaxDebt is how many tokens below zero a key may go, because [Reservation.Settle] or
	// [Use.Charge] took more than it had, or because more was admitted while Redis did not answer.
	// Its requests are refused until the refill has paid that. Debt beyond MaxDebt is forgiven, and
	// counted in Stats. 0 means one burst; other values are at least the largest burst of Limit,
	// and at most 2⁴⁰. Only for a TokenBucket. Choose the sum of the highest costs of all
	// requests of one key that may run at the same time. Choose the same in all processes, because
	// each call of a process forgives the debt beyond its own MaxDebt. A larger burst of PerKey, of
	// Plans or of a request is the key's MaxDebt. The debt may exceed MaxDebt by what the key
	// refills in one second, because so much may be admitted beside Redis each time that it comes
	// back.
	MaxDebt int64

	Shadow bool // tries the policy out: it decides and counts as usual and then admits all, also what is invalid (Shadowed)
}

// FailMode selects what decides without Redis, when this process' leases are spent. Its String is
// "fail-local", "fail-open" or "fail-closed".
type FailMode = local.FailMode

// The fail modes.
const (
	// FailLocal is the default. It admits by this process' fallback: rate/N and burst/N, at least
	// 1, for the N of PolicyStats.Processes. What it admits while Redis answers is subtracted too,
	// so the fallback of a busy key is not full when an outage begins. A request that costs more
	// than the fallback's burst is refused. When Redis answers again, what was admitted is charged,
	// less the refill that a full bucket lost.
	FailLocal = local.FailLocal

	FailOpen   = local.FailOpen   // admits everything and counts it; afterwards it is charged like FailLocal
	FailClosed = local.FailClosed // refuses everything, with Reason Unavailable (HTTP 503)
)

var failModes = [...]string{
	FailLocal: FailLocal.String(), FailOpen: FailOpen.String(), FailClosed: FailClosed.String(),
}

// NoLease is a Lease.Size that takes every token directly from Redis: a round trip for each request
// that is not known to be denied.
const NoLease = -1

// Lease tunes leases. One lives for four times Period, 1 s, or twice Options.Timeout, whichever is
// longest.
type Lease struct {
	// Size is the number of tokens of a lease: 0 follows demand, and NoLease never leases. It must
	// be at most a quarter of the burst, rounded up; with PerKey, Plans or several limits a larger
	// one is reduced to that. A key is leased only while that saves calls to Redis, and with Size 0 only if its
	// burst is at least 50 and 12 times the cost of a request, because otherwise too many of the
	// few tokens would lie in one process. A crash burns at most 2·Size tokens of each bucket, with
	// Size 0 half of the burst, and what one request cost if that is more.
	Size int64

	// Period is how long a lease should last at the present demand: 5 ms … 1 min; 0 means 250 ms.
	// Redis gets about one call per period, process and hot key. It is at most the time in which a
	// quarter of the burst is refilled, and an eighth of a SlidingWindow.
	Period time.Duration
}

const minPeriod, maxPeriod = 5 * time.Millisecond, time.Minute // of a lease

// clone returns p with a map of its own, because callers may write to theirs.
func (p Policy) clone() Policy {
	p.Plans = maps.Clone(p.Plans)
	return p
}

var policyName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
