package tiered

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Policy is one rule: how much each key may have, and how.
type Policy struct {
	// Name tells policies apart in Redis, in Stats and in Decisions: 1 to 64 of A–Z a–z 0–9 _ . -
	Name string

	// Limit is what each key may have. Required.
	Limit Limit

	// Also are further limits on each key: a request needs all of them. Up to seven, of a TokenBucket (each with a Per of its
	// own) and of a SlidingWindow.
	Also []Limit

	// Algorithm is how what a key has used is counted. The zero value is TokenBucket.
	Algorithm Algorithm

	// Calendar lets the windows of a FixedWindow begin at whole multiples of Limit.Per since 1970 in UTC, at the same instant
	// for all keys: every minute at :00, every day at midnight. Without it each key has an instant of its own, so that not all
	// come back at once.
	Calendar bool

	// PerKey, if not nil, is what a key may have instead: a plan, an exception. It is called at a key's first use, and the
	// answer is kept as long as the process keeps the key: [Limiter.Refresh] has it asked again. The zero Limit means
	// Policy.Limit; so does a Limit that is not valid, and a panic, each counted in Stats.
	//
	// With Shards each of a key's buckets asks: as a rule twice for a key that the first has refused, and then once for each
	// shard when it is Reset.
	//
	// It runs on the goroutine of the request, once at a time for each key, others of the same key wait for it, and no
	// Budget bounds it: look into memory, not into a database. It must not use this Limiter. Of a FixedWindow and a SlidingLog
	// its limits must have the Per of Limit.
	PerKey func(key string) Limit

	// FailMode decides when Redis does not answer and this process' lease is used up. The zero value is FailLocal.
	FailMode FailMode

	// Lease tunes how tokens are leased from Redis. The zero value follows demand.
	Lease Lease

	// Shards splits the bucket of each key into so many, 2 to 64, each with a part of the limits and a key of its own in Redis,
	// in a Cluster on nodes of their own: for a single key that is more than one Redis can carry. With leases that is rare:
	// beyond some 10 000 calls per second for one key, docs/performance.md, "A very hot key". 0 and 1 mean one bucket.
	//
	// Each process uses two of a key's shards, by hash: what the first refuses it asks the second for. The bounds stay those
	// of the limit. In exchange a request is now and then refused that one bucket would have admitted, hardly ever if there are
	// ten times as many processes as shards; and no request may cost more than the burst divided by Shards, rounded down: it
	// is refused with ExceedsBurst, and that is the Decision's Limit then. A limit by PerKey has a burst of Shards at least.
	// Remaining is what one shard has left, times Shards: there may be less.
	//
	// A key that both shards refuse has cost two calls where it would cost one. It is two keys to Options.MaxKeys and
	// Stats.Keys, and as many as Shards after [Limiter.Reset].
	Shards int

	// Shadow tries the policy out: it decides and counts as ever, and then admits, with Reason Shadowed where it would
	// have refused. Nothing is refused, not even what is not valid.
	Shadow bool
}

// FailMode is what decides when Redis does not answer. Leases are spent to their deadline first, in every mode.
type FailMode uint8

const (
	// FailLocal goes on alone: the process admits its share of the limit, rate/N and burst/N (1 at least) for N
	// processes, as far as it has not used it already. A request that costs more than the share's burst is refused. What
	// is admitted so is charged to the bucket afterwards, as far as Redis did not lose as much refill meanwhile.
	FailLocal FailMode = iota

	// FailOpen admits everything, and counts it. Afterwards it is charged like FailLocal's.
	FailOpen

	// FailClosed refuses everything, with Reason Unavailable (HTTP 503).
	FailClosed
)

var failModes = [...]string{FailLocal: "fail-local", FailOpen: "fail-open", FailClosed: "fail-closed"}

// String returns "fail-local", "fail-open" or "fail-closed".
func (m FailMode) String() string {
	if int(m) < len(failModes) {
		return failModes[m]
	}
	return fmt.Sprintf("fail mode %d", uint8(m))
}

// Limit is Tokens per Per, with bursts of up to Burst: in any interval of length t a key is admitted at most
// Burst + Tokens·t/Per tokens, over all processes together. The zero Limit is an error.
type Limit struct {
	Tokens int64         // 1 … 2⁴⁰
	Per    time.Duration // 1 µs … 100 years, a whole number of µs
	Burst  int64         // 1 … 2⁴⁰; 0 means Tokens. Of a TokenBucket only

	// Precision is the length of the blocks that a SlidingWindow counts by: 1 µs … Per, a whole number of µs, at most 511 of
	// them in Per. A token comes back up to two blocks late. 0 means a sixtieth of Per from a minute on, else a fortieth.
	Precision time.Duration
}

// PerSecond is n tokens per second, with bursts of n.
func PerSecond(n int64) Limit { return Limit{Tokens: n, Per: time.Second} }

// PerMinute is n tokens per minute, with bursts of n.
func PerMinute(n int64) Limit { return Limit{Tokens: n, Per: time.Minute} }

// PerHour is n tokens per hour, with bursts of n.
func PerHour(n int64) Limit { return Limit{Tokens: n, Per: time.Hour} }

// PerDay is n tokens per 24 hours, with bursts of n.
func PerDay(n int64) Limit { return Limit{Tokens: n, Per: 24 * time.Hour} }

// WithBurst is l with bursts of up to n tokens, 1 … 2⁴⁰.
func (l Limit) WithBurst(n int64) Limit {
	l.Burst = n
	if n == 0 {
		l.Burst = -1 // "no burst at all" admits nothing: an error, not the default
	}
	return l
}

func (l Limit) burst() int64 {
	if l.Burst == 0 {
		return l.Tokens
	}
	return l.Burst
}

// NoLease as Lease.Size takes every token directly from Redis: one round trip for each request that is not known to be
// denied, and nothing parked in any process.
const NoLease = -1

// Lease tunes how many tokens a process takes from Redis at once. A lease's life, its low-water mark and its hold-off
// follow from these two.
type Lease struct {
	// Size is the number of tokens of a lease: 0 follows demand, NoLease never leases. At most a quarter of the burst,
	// with Policy.Shards of a shard's (rounded up; with PerKey more is cut to that): a crash burns twice that at most, of
	// each bucket. A key is leased only while its demand pays for it, and with 0 only from a burst of 50 on that is 12 times
	// what a request costs: what lies in a process is missing in a small one.
	Size int64

	// Period is how long a lease should last at present demand: 5 ms … 1 min, 0 means 250 ms. Redis sees about one call
	// per period, process and hot key. Where the refill brings a quarter of the burst sooner, that is the period; of a
	// SlidingWindow it is an eighth of the window at most.
	Period time.Duration
}

const (
	maxTokens = lua.MostTokens // levels are doubles; beyond this, small refills would be lost in them
	maxPer    = 100 * 365 * 24 * time.Hour

	// DefaultPeriod is what Lease.Period is when it is 0: four calls per second, process and hot key.
	DefaultPeriod = 250 * time.Millisecond

	minPeriod, maxPeriod = 5 * time.Millisecond, time.Minute
)

// clone is p with a slice of its own: who passed the one, or gets the other, may write to it.
func (p Policy) clone() Policy {
	p.Also = slices.Clone(p.Also)
	return p
}

var policyName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// validate reports all that is wrong with p, each problem with field, value and rule.
func (p Policy) validate() error {
	var all []error
	bad := func(field string, value any, rule string) {
		all = append(all, fmt.Errorf("tiered: Policy.%s is %v: %s", field, value, rule))
	}
	if !policyName.MatchString(p.Name) {
		name := p.Name
		if len(name) > 80 {
			name = name[:80] + "…"
		}
		bad("Name", fmt.Sprintf("%q", name), "must be 1 to 64 of A-Z a-z 0-9 _ . -")
	}
	p.validateAlgorithm(bad)
	p.validateShards(bad)
	for i, l := range p.Also {
		if l.rule() != local.ByLimit {
			bad(fmt.Sprintf("Also[%d]", i), "Unlimited or Blocked", "must be a limit")
		} else if err := l.validate(fmt.Sprintf("Policy.Also[%d]", i)); err != nil {
			all = append(all, err)
		}
	}
	l := p.Limit
	err := l.validate("Policy.Limit")
	if err != nil {
		all = append(all, err)
	}
	limited := err == nil && l.rule() == local.ByLimit // a quarter of a limit that makes no sense is none
	if quarter := (l.burst()/int64(max(p.Shards, 1)) + 3) / 4; p.Lease.Size < NoLease || limited && p.PerKey == nil && p.Lease.Size > quarter {
		bad("Lease.Size", p.Lease.Size,
			fmt.Sprintf("must be 0 (follow demand), NoLease, or 1 to a quarter of the burst (of a shard's, if there are any), here %d", quarter))
	}
	if p.FailMode > FailClosed {
		bad("FailMode", p.FailMode, "must be FailLocal, FailOpen or FailClosed")
	}
	if d := p.Lease.Period; d != 0 && (d < minPeriod || d > maxPeriod) {
		bad("Lease.Period", d, "must be 5ms to 1m, or 0 for 250ms")
	}
	return errors.Join(all...)
}

// nanosPerToken is the refill interval.
func (l Limit) nanosPerToken() float64 { return float64(l.Per) / float64(l.Tokens) }

// resetAfter reports how long a bucket with remaining tokens takes to be full.
func resetAfter(missing int64, nanosPerToken float64) time.Duration {
	d := float64(missing) * nanosPerToken
	if d >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(d)
}
