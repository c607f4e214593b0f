package local

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Policy is what the buckets of one policy have in common. It never changes: [Bucket.SetPolicy]
// gives a bucket another one.
type Policy struct {
	Number int // identifies it in a Cache
	Owner  any // the caller's; not read here

	Call lua.Call // what every call has: the algorithm and its limits

	NanosPerToken float64 // ns that the refill takes for a token, for the owner; not read here

	Rule  Rule   // unless it is ByLimit, the numbers below are those by which what is out goes back
	Unset bool   // nobody set those numbers for the key, so nothing is out by them, and no call is made by them
	Rules *Rules // the policy under other rules; nil if each bucket may have its own

	Cap    int64         // burst, tokens, 1 … 2⁴⁰; of a window, what it holds
	Tokens int64         // refilled per Per, 1 … 2⁴⁰; of a window, Cap
	Per    time.Duration // ≥ 1 µs

	// Each are the limits if the numbers above sum up several: the smallest burst and the slowest
	// rate. It is nil if there is one.
	Each []Numbers

	// Parent is the whole limit if standing shares have a part of it: the numbers above are those
	// of the part in Redis. Else it is nil. The fallback is a part of the part in Redis.
	Parent *Policy

	Window time.Duration // the shortest length of its sliding windows; 0 for any other way to count

	// CapOf returns, of a window by its begin, how many tokens Redis has, which may be less or more
	// than Cap, and whether a call for it must not be executed in another one. The times are the
	// process' own and those of the node's clock, in µs. It is nil if that is always Cap, as by the
	// calendar.
	CapOf func(now time.Duration, server, begin int64) (tokens int64, alone bool)

	// At returns the window of the calendar that contains a time of the node's clock, both in µs:
	// its begin and its length. It is nil if the windows follow from Call and Conditions.
	At func(server int64) (begin, length int64)

	Size        int64         // tokens of a lease; 0 follows demand
	Period      time.Duration // how long a lease should last at present demand
	NoLease     bool          // every token is taken directly
	ShortWindow bool          // a fixed window may be over when a reply comes: a call that settles takes none too
	Unleased    bool          // also by a call that settles: in a sliding window a lease would count until its end

	MinBurst int64 // a smaller burst is not leased from, because what lies in a process is missing in it; 0 for any

	FailMode FailMode // what decides when Redis does not

	Budget  time.Duration  // the longest that a request waits
	Timeout time.Duration  // how long after its sending a call may still be executed; see timeout
	Uniform func() float64 // random numbers in [0, 1); safe for concurrent use

	Spent     *SpentFallbacks // what evicted keys have used of their fallbacks; nil remembers nothing
	Paid      *atomic.Int64   // counts the settled debt that is of costs that turned out higher; nil counts none
	NearLimit *atomic.Int64   // counts tokens that were admitted while less than a fifth of Cap was left; nil counts none
}

// Rule says whether there is a limit to decide by.
type Rule uint8

// The rules. Under all but the first the owner decides, and asks the bucket for nothing.
const (
	ByLimit    Rule = iota
	Unlimited       // everything is admitted
	Blocked         // nothing is admitted
	Unresolved      // not known yet: the owner looks the key's limit up
)

// Rules are one policy under each of the rules. Buckets that share one of them share the others
// too.
type Rules struct {
	under [Unresolved + 1]atomic.Pointer[Policy]
}

// WithRule is the policy with the same numbers and another rule.
func (p *Policy) WithRule(r Rule) *Policy {
	if p.Rule == r {
		return p
	}
	if p.Rules != nil {
		if q := p.Rules.under[r].Load(); q != nil {
			return q
		}
	}
	q := *p
	q.Rule = r
	if p.Rules != nil {
		p.Rules.under[r].Store(&q) // a concurrent call makes another one, which is as good
	}
	return &q
}

const (
	// minTTL is the shortest life of a lease. It is long against any pause of a healthy process, so
	// that tokens do not end unspent. The price is how long a crash parks its pot (1.5 ttl at
	// most).
	minTTL = time.Second

	// drift is by how much the rates of the clocks of process and Redis may differ: 1 %, a hundred
	// times what quartz does. A lease is used for that much less of its life.
	drift = 0.01

	// minIdle is the shortest idle time after which a lease goes back. Below it the calls cost more
	// than parked tokens.
	minIdle = 10 * time.Millisecond

	// maxBackoff is the longest that a key waits before it asks again after a failure. The end of
	// an outage is noticed by then.
	maxBackoff = time.Second

	// connecting is how many Timeouts a key waits at most before it asks a node again that has not
	// answered yet. Connecting takes some round trips more than a call, so far away it takes longer
	// than Timeout, and the call fails. Until one succeeds, a starting process decides by the fail
	// mode: for 0.2 s at round trips of 15 ms.
	connecting = 4
)

// numbers are those of the limit, or of all.
func (p *Policy) numbers() Numbers { return Numbers{p.Cap, p.Tokens, p.Per} }

// sameLimits reports whether Redis hears of the same limits under p and q.
func (p *Policy) sameLimits(q *Policy) bool {
	return p.numbers() == q.numbers() && slices.Equal(p.Each, q.Each)
}

// sameEnds reports whether what counts ends alike under p and q. Two policies may go by different
// calendars.
func (p *Policy) sameEnds(q *Policy) bool {
	return p == q || p.Window == q.Window && p.At == nil && q.At == nil
}

// anyBelow reports whether a limit of p has a smaller burst or a lower rate than that of q.
func (p *Policy) anyBelow(q *Policy) bool {
	for i := range min(len(p.Each), len(q.Each)) {
		if p.Each[i].below(q.Each[i]) {
			return true
		}
	}
	return p.numbers().below(q.numbers())
}

// anySmaller reports whether a limit of p has a smaller burst than that of q.
func (p *Policy) anySmaller(q *Policy) bool {
	for i := range min(len(p.Each), len(q.Each)) {
		if p.Each[i].Cap < q.Each[i].Cap {
			return true
		}
	}
	return p.Cap < q.Cap
}

// decides reports whether the limit decides over n tokens. It did when the owner looked, but it may
// have changed.
func (p *Policy) decides(n int64) bool { return p.Rule == ByLimit && n <= p.Cap }

// Most is the most that Redis may have of a key: Cap, or of a window that began before shares were
// used the whole limit.
func (p *Policy) Most() int64 {
	if p.CapOf != nil && p.Parent != nil {
		return p.Parent.Cap
	}
	return p.Cap
}

// WindowBegin returns when the fixed window begins that contains a time of the node's clock, of
// those that begin at phase + k·Period. All are in µs.
func (p *Policy) WindowBegin(phase, server int64) int64 { return server - (server-phase)%p.Call.Period }

// refill reports the tokens that d brings.
func (p *Policy) refill(d time.Duration) float64 {
	return float64(d) * float64(p.Tokens) / float64(p.Per)
}

// wait reports how long the refill takes to bring x tokens, rounded up; 0 when x ≤ 0.
func (p *Policy) wait(x float64) time.Duration {
	d := math.Ceil(x * float64(p.Per) / float64(p.Tokens))
	if d >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(max(d, 0))
}

// countPaid counts n tokens of settled debt that were charged.
func (p *Policy) countPaid(n int64) {
	if p.Paid != nil && n > 0 {
		p.Paid.Add(n)
	}
}

// maxDebt is how far below zero a bucket may go.
func (p *Policy) maxDebt() int64 { return max(p.Cap, p.Call.MaxDebt) }

// lowest is the lowest level of a bucket. Debt below it is forgiven.
func (p *Policy) lowest() float64 { return -float64(p.maxDebt()) - p.refill(time.Second) }

// window is how long a token counts, at most, if the policy's limits are windows or a log.
func (p *Policy) window() time.Duration {
	longest := max(p.Call.Span, 1) * p.Call.Period
	for _, l := range p.Call.Also {
		longest = max(longest, max(l.Span, 1)*l.Period)
	}
	return micros(longest)
}

// slow reports whether what is used comes back after a minute or more: in a window of that length,
// or in a bucket that takes longer to refill. What lies in one process is then missed in the
// others.
func (p *Policy) slow() bool {
	d := p.wait(float64(p.Cap))
	if !p.Call.Algorithm.Has(lua.Window) {
		return d > time.Minute
	}
	return d >= time.Minute
}

// quarter is the most that one call leases, unless a single request costs more. It is also the
// highest low-water mark. So a crash burns half of the burst at most.
func (p *Policy) quarter() int64 { return (p.Cap + 3) / 4 }

// with returns p, or a copy of own with the limit that governs, or nil if own governs.
func (p *Policy) with(own *Policy, governs lua.Limit) *Policy {
	if governs.Tokens == 0 {
		return nil
	}
	per := time.Duration(governs.Period) * time.Microsecond
	if p != nil && p.numbers() == (Numbers{governs.Cap, governs.Tokens, per}) {
		return p
	}
	q := *own
	q.Rules, q.Cap, q.Tokens, q.Per = nil, governs.Cap, governs.Tokens, per
	q.NanosPerToken = float64(per) / float64(governs.Tokens)
	return &q
}

// A lease lasts for an eighth of a sliding window at most, and a hold-off for a fortieth. Such a
// window counts what is out in leases, and it counts what was spent from the settlement on. So
// tokens that lie in a process for long are missing in it: with four times this hold-off, an
// overloaded fleet uses 0.92 of the limit (TestSizing).
const (
	slidingPeriod  = 8
	slidingHoldOff = 40
)

// longestDenial is the longest that a denial is believed, with jitter below it. Returned tokens,
// refunds, a Reset and a raised limit must become visible. A key that is asked for and refused all
// the time costs a call in 4.4 s.
const longestDenial = 5 * time.Second

// maxOverdrawn is the longest period of a key over its limit. With the jitter of a hold-off it is
// longestDenial.
const maxOverdrawn = longestDenial * 4 / 5

// period reports how long a lease should last if 99 of 100 calls take at most trip. That is Period,
// doubled up to twice while a call takes more than a quarter of it. It is no longer than the refill
// takes for a quarter of the burst (C/4r), because what waits in Redis while a process holds off
// would overflow: at C/2r a small burst loses a tenth of the limit (docs/internals/sizing.md).
func (p *Policy) period(trip time.Duration) time.Duration {
	t := p.Period
	for t < 4*p.Period && trip > t/4 {
		t *= 2
	}
	if p.Window > 0 {
		t = min(t, p.Window/slidingPeriod)
	}
	return max(min(t, p.wait(float64(p.Cap)/4)), 1)
}

// retryPause reports how long a key waits before it asks again for what could not be sent: a
// period, but no longer than after a failure.
func (p *Policy) retryPause(trip time.Duration) time.Duration {
	return min(max(p.period(trip), minIdle), maxBackoff)
}

// ttl reports how long a lease lives. That is longer than any call for it can be under way, so that
// every copy of a call meets the record that knows it.
func (p *Policy) ttl(period, timeout time.Duration) time.Duration {
	return max(4*period, minTTL, 2*timeout)
}

// usable is how long a process may use a lease that Redis keeps for ttl.
func usable(ttl time.Duration) time.Duration { return time.Duration(float64(ttl) * (1 - drift)) }

// timeout reports how long after its sending a call may still be executed, at a node that needs
// long for an answer. That is half of a sliding window at most, so that no lease outlives the
// window.
func (p *Policy) timeout(long time.Duration) time.Duration {
	if p.Window > 0 {
		long = min(long, p.Window/2)
	}
	return max(p.Timeout, long)
}

// MaxTTL reports the longest that a lease of the policy may live. Calls that take long double its
// period twice.
func (p *Policy) MaxTTL() time.Duration { return p.ttl(p.period(never), p.Timeout) }

// idle reports how long a lease may lie unused before it goes back. If nothing went back, only half
// of a limit would be used whose demand moves from process to process (docs/internals/sizing.md).
func idle(period time.Duration) time.Duration { return max(2*period, minIdle) }

// pauseOf returns a pause of at most longest and at least half of it, so that keys that failed
// together do not ask together.
func (p *Policy) pauseOf(longest time.Duration) time.Duration { return p.between(0.5, 1, longest) }

// between returns a random duration in [lo·d, hi·d).
func (p *Policy) between(lo, hi float64, d time.Duration) time.Duration {
	return time.Duration((lo + (hi-lo)*p.Uniform()) * float64(d))
}
