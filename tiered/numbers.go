package tiered

import (
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// What the engine and the scripts need of a policy, as numbers.

const (
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

// precision returns the length of a block.
func (l Limit) precision() time.Duration {
	if l.Precision != 0 {
		return l.Precision
	}
	return lua.DefaultBlock(l.Per)
}

// stored returns the limit as the store gets it.
func (l Limit) stored(a Algorithm) lua.Limit {
	s := lua.Limit{Cap: l.burst(), Tokens: l.Tokens, Period: l.longest().Microseconds()}
	if a.has(lua.Blocks) { // an interval of length Per touches one block more than Per contains
		q := l.precision()
		s.Period, s.Span = q.Microseconds(), int64((l.Per+q-1)/q)+1
	}
	return s
}

// leastBurst is the smallest burst that is leased unless Lease.Size is set. If one process demands
// exactly the limit, at costs of 1 to 3, leases use 0.89 of a burst of 5, 0.972 of 20, 0.982 of 40
// and 0.987 of 60. Direct takes use all of it.
const leastBurst = 50

// window returns the length of the shortest sliding window, 0 if there is none.
func (p Policy) window() time.Duration {
	if !p.Algorithm.has(lua.Blocks) {
		return 0
	}
	shortest := p.Limit.Per
	for _, l := range p.Limit.Each() {
		shortest = min(shortest, l.Per)
	}
	return shortest
}

// algorithm returns the algorithm that counts. With several limits it may be another one.
func (p Policy) algorithm() lua.Algorithm {
	a := lua.Algorithm(p.Algorithm)
	if p.Limit.several() {
		return a.BySeveral()
	}
	return a
}

// kind returns what the names of a policy's buckets depend on.
func (p Policy) kind() remote.Kind {
	k := remote.Kind{Algorithm: p.algorithm(), Calendar: p.Calendar, Unit: p.Limit.Calendar.Unit.String()}
	if p.Algorithm.has(lua.NamesPer) && k.Unit == "" {
		k.Window = p.Limit.Per.Microseconds()
	}
	return k
}

// windowAt returns what a local policy needs to know the windows of a limit by the calendar, or
// nil. Most calls are in the window of the call before.
func (l Limit) windowAt() func(server int64) (begin, length int64) {
	if l.Calendar.IsZero() || l.rule() != local.ByLimit {
		return nil
	}
	type window struct{ begin, end int64 }
	var last atomic.Pointer[window]
	windows := l.Calendar.Windows()
	return func(server int64) (begin, length int64) {
		w := last.Load()
		if w == nil || server < w.begin || server >= w.end {
			from, to := windows.At(time.UnixMicro(server))
			w = &window{from.UnixMicro(), to.UnixMicro()}
			last.Store(w)
		}
		return w.begin, w.end - w.begin
	}
}

// leased reports whether a policy can be leased. A SlidingWindow cannot if a lease may last longer
// than the window, because tokens would be held for longer than they count once they are used. A
// brief FixedWindow has ended when its lease arrives.
func (p Policy) leased(lp *local.Policy) bool {
	return p.Lease.Size != NoLease && p.Algorithm.has(lua.Leased) && !lp.ShortWindow &&
		(lp.Window == 0 || lp.Window >= lp.MaxTTL())
}

// fallbackNumbers returns the numbers of the process' fallback. With several limits they are the
// smallest burst and the slowest refill, which are safe for each limit.
func (p Policy) fallbackNumbers() (burst, tokens int64, per time.Duration) {
	burst, tokens, per = p.Limit.burst(), p.Limit.Tokens, p.Limit.longest()
	for _, l := range p.Limit.Each()[1:] {
		if l.nanosPerToken() > float64(per)/float64(tokens) {
			tokens, per = l.Tokens, l.Per
		}
	}
	return burst, tokens, per
}

// call returns what every call of a policy contains.
func (p Policy) call() lua.Call {
	each := p.Limit.Each()
	first := each[0].stored(p.Algorithm)
	c := lua.Call{
		Algorithm: p.algorithm(), Cap: first.Cap, Tokens: first.Tokens, Period: first.Period, Span: first.Span,
		TTL: int64(time.Second / time.Microsecond), Fleet: 1, MaxDebt: p.MaxDebt,
	}
	for _, also := range each[1:] {
		c.Also = append(c.Also, also.stored(p.Algorithm))
	}
	return c
}

// retention returns an upper bound of the time for which what a key used counts.
func (p Policy) retention() (longest time.Duration) {
	for _, l := range p.Limit.Each() {
		longest = max(longest, l.retention(p.Algorithm))
	}
	return longest
}

// retention is Policy.retention of one limit.
func (l Limit) retention(a Algorithm) time.Duration {
	switch {
	case !a.has(lua.Window):
		return engine.ResetAfter(l.burst(), l.nanosPerToken())
	case a.has(lua.Blocks):
		return l.Per + 2*l.precision()
	}
	return l.longest()
}
