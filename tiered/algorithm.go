package tiered

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Algorithm selects how usage is counted. docs/choosing.md compares the algorithms.
type Algorithm uint8

const (
	// TokenBucket admits at most Burst + Tokens·t/Per in any interval of length t. Choose it unless a contract requires
	// another one: it stores the least, its leases cost nothing except that tokens held by one process are missing in
	// the others, and its RetryAfter is when the refill has brought the tokens.
	TokenBucket Algorithm = iota

	// FixedWindow admits at most Tokens in each window of length Per. An interval of that length that touches two
	// windows may see twice as many. It is meant for contracts and bills that count by windows. See
	// Policy.Calendar.
	FixedWindow

	// SlidingLog admits at most Tokens in any interval of length Per, to the microsecond. Tokens may be 100 000 at
	// most. Each request that is not known to be denied is a call to Redis, which keeps a record of each admitted one
	// for as long as Per. It is meant for small limits such as logins and codes.
	SlidingLog

	// SlidingWindow admits at most Tokens in any interval of length Per, also for large limits. A key can have several
	// (Policy.Also). It counts in blocks (Limit.Precision). A used token comes back once Per is over, up to two blocks
	// late.
	SlidingWindow
)

var algorithms = [...]string{
	TokenBucket: "token bucket", FixedWindow: "fixed window", SlidingLog: "sliding log",
	SlidingWindow: "sliding window",
}

// String returns the algorithm's name in words, as in "token bucket".
func (a Algorithm) String() string {
	if int(a) < len(algorithms) {
		return algorithms[a]
	}
	return fmt.Sprintf("algorithm %d", uint8(a))
}

const (
	maxLimits  = lua.MostLimits
	maxBlocks  = lua.MostSpan - 1 // in a Per: an interval of that length touches one more
	maxWindow  = 10 * 365 * 24 * time.Hour
	maxEntries = 100_000 // of a SlidingLog
)

// The scripts accept what is accepted here, or this does not compile: the longest Per, and all
// blocks of the longest window, which together are up to two blocks longer than the window.
const (
	_ = uint64(lua.LongestPeriod - maxPer/time.Microsecond)
	_ = uint64(lua.LongestWindow - 3*maxWindow/time.Microsecond)
)

// validateAlgorithm reports settings that do not go together.
func (p Policy) validateAlgorithm(bad func(field string, value any, rule string)) {
	a := p.Algorithm
	if a > SlidingWindow {
		bad("Algorithm", a, "must be TokenBucket, FixedWindow, SlidingLog or SlidingWindow")
		return
	}
	p.validateMaxDebt(bad)
	if p.Limit.rule() != local.ByLimit {
		if a == FixedWindow || a == SlidingLog {
			bad("Limit", "Unlimited or Blocked",
				"must be a limit, because the names of the buckets contain its Per; PerKey may return these")
		}
		if len(p.Also) > 0 {
			bad("Also", fmt.Sprintf("%d limits", len(p.Also)), "must be empty if Limit is Unlimited or Blocked")
		}
		return
	}
	if p.PerKey != nil && len(p.Also) > 0 {
		bad("Also", fmt.Sprintf("%d limits", len(p.Also)), "must be empty with PerKey")
	}
	if p.Calendar && a != FixedWindow {
		bad("Calendar", true, "is of a FixedWindow only, and Algorithm is "+a.String())
	}
	if len(p.Also) > 0 && a != SlidingWindow && a != TokenBucket {
		bad("Also", fmt.Sprintf("%d limits", len(p.Also)),
			"is of a TokenBucket or SlidingWindow only, and Algorithm is "+a.String())
	}
	if len(p.Also) >= maxLimits {
		bad("Also", fmt.Sprintf("%d limits", len(p.Also)), fmt.Sprintf("must be at most %d", maxLimits-1))
		return
	}
	if a == SlidingLog {
		if p.Lease.Size != 0 && p.Lease.Size != NoLease {
			bad("Lease.Size", p.Lease.Size, "must be 0 or NoLease: a SlidingLog is never leased")
		}
		if p.Lease.Period != 0 {
			bad("Lease.Period", p.Lease.Period, "must be 0: a SlidingLog is never leased")
		}
	}
	for i, l := range p.limits() {
		field := "Limit"
		if i > 0 {
			field = fmt.Sprintf("Also[%d]", i-1)
		}
		l.validateFor(a, field, bad)
		for j, other := range p.limits()[:i] {
			if a == SlidingWindow && (l.precision() <= 0 || other.precision() <= 0) {
				continue // it is reported by itself, and has no blocks
			}
			if s, o := l.stored(a), other.stored(a); s.Period == o.Period && s.Span == o.Span {
				name := "Limit"
				if j > 0 {
					name = fmt.Sprintf("Also[%d]", j-1)
				}
				rule := "must differ from that of " + name
				if a == SlidingWindow {
					rule += fmt.Sprintf(", or the Precision must: both count by %d blocks of %v", s.Span-1,
						l.precision())
				}
				bad(field+".Per", l.Per, rule)
			}
		}
	}
}

// validateMaxDebt reports a debt that no bucket can have, or that is less than what an outage may admit.
func (p Policy) validateMaxDebt(bad func(field string, value any, rule string)) {
	if p.MaxDebt == 0 {
		return
	}
	if p.Algorithm != TokenBucket {
		bad("MaxDebt", p.MaxDebt, "is of a TokenBucket only, and Algorithm is "+p.Algorithm.String())
		return
	}
	least := int64(1)
	if p.Limit.rule() == local.ByLimit {
		for _, l := range p.limits() {
			if l.rule() == local.ByLimit {
				least = max(least, l.burst())
			}
		}
	}
	if p.MaxDebt < least || p.MaxDebt > maxTokens {
		bad("MaxDebt", p.MaxDebt, fmt.Sprintf("must be 0 for one burst, or at least the burst, here %d, and at most 2⁴⁰", least))
	}
}

// validateFor reports what an algorithm does not use, or cannot count.
func (l Limit) validateFor(a Algorithm, field string, bad func(field string, value any, rule string)) {
	if l.Precision != 0 && a != SlidingWindow {
		bad(field+".Precision", l.Precision, "is of a SlidingWindow only, and Algorithm is "+a.String())
	}
	if a == TokenBucket {
		return
	}
	if a == SlidingLog && l.Tokens > maxEntries {
		bad(field+".Tokens", l.Tokens, fmt.Sprintf("must be at most %d: a SlidingLog keeps every request", maxEntries))
	}
	if l.Burst != 0 && l.Burst != l.Tokens {
		bad(field+".Burst", l.Burst, "must be 0: a "+a.String()+" admits Tokens and no more at once")
	}
	if l.Per > maxWindow {
		bad(field+".Per", l.Per, "must be at most 10 years of a "+a.String())
	}
	if a != SlidingWindow || l.Per < time.Microsecond {
		return
	}
	if q := l.precision(); q < time.Microsecond || q > l.Per || q%time.Microsecond != 0 {
		bad(field+".Precision", l.Precision, "must be 1µs to Per, in whole microseconds, or 0")
	} else if n := (l.Per + q - 1) / q; n > maxBlocks {
		bad(field+".Precision", l.Precision,
			fmt.Sprintf("must divide Per into at most %d blocks, here %d: their span is one longer, and at most 512",
				maxBlocks, n))
	}
}

// limits returns all limits of a policy.
func (p Policy) limits() []Limit { return append([]Limit{p.Limit}, p.Also...) }

// precision returns the length of a block.
func (l Limit) precision() time.Duration {
	if l.Precision != 0 {
		return l.Precision
	}
	return lua.DefaultBlock(l.Per)
}

// stored returns the limit as the store gets it.
func (l Limit) stored(a Algorithm) lua.Limit {
	s := lua.Limit{Cap: l.burst(), Tokens: l.Tokens, Period: l.Per.Microseconds()}
	if a == SlidingWindow { // an interval of length Per touches one block more than Per contains
		q := l.precision()
		s.Period, s.Span = q.Microseconds(), int64((l.Per+q-1)/q)+1
	}
	return s
}

// leastBurst is the smallest burst that is leased unless Lease.Size is set. If one process demands exactly the
// limit, at costs of 1 to 3, leases use 0.89 of a burst of 5, 0.972 of 20, 0.982 of 40 and 0.987 of 60. Direct
// takes use all of it.
const leastBurst = 50

// window returns the length of the shortest sliding window, 0 if there is none.
func (p Policy) window() time.Duration {
	if p.Algorithm != SlidingWindow {
		return 0
	}
	shortest := p.Limit.Per
	for _, l := range p.Also {
		shortest = min(shortest, l.Per)
	}
	return shortest
}

// kind returns what the names of a policy's buckets depend on.
func (p Policy) kind() remote.Kind {
	switch p.Algorithm {
	case FixedWindow:
		return remote.Kind{Algorithm: lua.FixedWindow, Window: p.Limit.Per.Microseconds(), Calendar: p.Calendar}
	case SlidingLog:
		return remote.Kind{Algorithm: lua.SlidingLog, Window: p.Limit.Per.Microseconds()}
	case SlidingWindow:
		return remote.Kind{Algorithm: lua.SlidingWindow}
	}
	if len(p.Also) > 0 {
		return remote.Kind{Algorithm: lua.TokenBuckets}
	}
	return remote.Kind{}
}

// leased reports whether a policy can be leased. A SlidingLog cannot. A SlidingWindow cannot if a lease may last
// longer than the window, because tokens would be held for longer than they count once they are used. A brief
// FixedWindow has ended when its lease arrives.
func (p Policy) leased(lp *local.Policy) bool {
	if p.Lease.Size == NoLease || p.Algorithm == SlidingLog || lp.ShortWindow {
		return false
	}
	if p.Algorithm == SlidingWindow {
		for _, l := range p.limits() {
			if l.Per < lp.MaxTTL() {
				return false
			}
		}
	}
	return true
}

// fallbackNumbers returns the numbers of the process' fallback: of several limits the smallest burst and the slowest refill,
// which is safe for each of them.
func (p Policy) fallbackNumbers() (burst, tokens int64, per time.Duration) {
	burst, tokens, per = p.Limit.burst(), p.Limit.Tokens, p.Limit.Per
	for _, l := range p.Also {
		burst = min(burst, l.burst())
		if l.nanosPerToken() > float64(per)/float64(tokens) {
			tokens, per = l.Tokens, l.Per
		}
	}
	return burst, tokens, per
}

// call returns what every call of a policy contains.
func (p Policy) call() lua.Call {
	first := p.Limit.stored(p.Algorithm)
	c := lua.Call{
		Algorithm: p.kind().Algorithm, Cap: first.Cap, Tokens: first.Tokens, Period: first.Period, Span: first.Span,
		TTL: int64(time.Second / time.Microsecond), Fleet: 1, MaxDebt: p.MaxDebt,
	}
	for _, also := range p.Also {
		c.Also = append(c.Also, also.stored(p.Algorithm))
	}
	return c
}

// retention returns an upper bound of the time for which what a key used counts.
func (p Policy) retention() (longest time.Duration) {
	for _, l := range p.limits() {
		longest = max(longest, l.retention(p.Algorithm))
	}
	return longest
}

// retention is Policy.retention of one limit.
func (l Limit) retention(a Algorithm) time.Duration {
	switch a {
	case TokenBucket:
		return engine.ResetAfter(l.burst(), l.nanosPerToken())
	case SlidingWindow:
		return l.Per + 2*l.precision()
	}
	return l.Per
}

// checkReplaces reports settings of p that cannot replace those of was, because existing buckets count by them.
func (p Policy) checkReplaces(was Policy) error {
	var all []error
	stays := func(stays bool, field string, is, was any) {
		if !stays {
			all = append(all, fmt.Errorf("tiered: Policy.%s is %v: must stay %v, because the buckets in Redis count by it",
				field, is, was))
		}
	}
	stays(p.Name == was.Name, "Name", fmt.Sprintf("%.80q", p.Name), fmt.Sprintf("%q", was.Name))
	stays(p.Algorithm == was.Algorithm, "Algorithm", p.Algorithm, was.Algorithm)
	stays(p.Calendar == was.Calendar, "Calendar", p.Calendar, was.Calendar)
	stays(p.Standing == was.Standing, "Standing", p.Standing, was.Standing)
	stays(slices.Equal(p.Also, was.Also), "Also", p.Also, was.Also)
	limited := p.Limit.rule() == local.ByLimit && p.Limit != (Limit{})
	stays(!was.namesPer() || !limited || p.Limit.Per == was.Limit.Per, "Limit.Per", p.Limit.Per, was.Limit.Per)
	return errors.Join(all...)
}

// namesPer reports whether the Per of Limit is part of a bucket's name, or of a limit's name within a bucket. Another Per
// would begin with full buckets.
func (p Policy) namesPer() bool {
	return p.Algorithm == FixedWindow || p.Algorithm == SlidingLog || p.Algorithm == TokenBucket && len(p.Also) > 0
}

// resets returns an upper bound of the time until a key with left tokens is full again.
func resets(p *local.Policy, left int64) time.Duration {
	switch {
	case left >= p.Cap:
		return 0
	case p.Call.Algorithm == lua.TokenBucket:
		return engine.ResetAfter(p.Cap-left, p.NanosPerToken)
	}
	return engine.Owner(p).Retention
}
