package measure

import (
	"cmp"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// limits are those of a key. A request is within them if it is within each.
type limits struct {
	all   []limit
	burst int64 // that they let through at once

	refill float64 // ns per token of the slowest bucket, +Inf for a rate of 0
	rest   int64   // ns, the longest window
}

// limit makes what one limit is measured by.
type limit struct {
	taker func() taker
	judge func() judge
}

// taker is the ideal limiter of a limit.
type taker interface {
	Has(at, n int64) bool
	Take(at, n int64) bool
	Allows(from, to, burst int64) float64
}

// judge says by how much what was admitted exceeds a limit.
type judge interface {
	Admit(asked, decided, n int64)
	Forget()
	Over() float64
}

// policer is a judge of a bucket: it takes an admission to be when it was decided.
type policer struct{ *ideal.Policer }

func (p policer) Admit(_, decided, n int64) { p.Policer.Admit(decided, n) }
func (p policer) Over() float64             { return p.Worst().Over }

// limitsOf returns the limits that a policy has for a key. Times count from begin on.
func limitsOf(p *tiered.Policy, l tiered.Limit, key string, begin time.Time) *limits {
	ls := &limits{burst: math.MaxInt64}
	for _, one := range l.Each() {
		ls.burst = min(ls.burst, burstOf(one))
	}
	for _, one := range l.Each() {
		tokens, per, burst := max(one.Tokens, 0), max(one.Per, 1), burstOf(one)
		switch a := lua.Algorithm(p.Algorithm); {
		case l == tiered.Unlimited() || l == tiered.Blocked() || !a.Has(lua.Window):
			ls.refill = max(ls.refill, float64(per)/float64(tokens))
			ls.all = append(ls.all, limit{
				func() taker { return ideal.NewBucket(tokens, per, burst) },
				func() judge { return policer{ideal.NewPolicer(tokens, per, burst)} },
			})
		case a.Has(lua.Edges):
			of := windowsOf(p, one, key, begin)
			ls.rest = max(ls.rest, int64(cmp.Or(one.Calendar.Longest(), per)))
			ls.all = append(ls.all, limit{
				func() taker { return ideal.NewWindow(tokens, of) }, func() judge { return ideal.NewWindow(tokens, of) },
			})
		default:
			ls.rest = max(ls.rest, int64(per))
			ls.all = append(ls.all, limit{
				func() taker { return ideal.NewLog(tokens, per) }, func() judge { return ideal.NewLog(tokens, per) },
			})
		}
	}
	return ls
}

func burstOf(l tiered.Limit) int64 { return cmp.Or(max(l.Burst, 0), max(l.Tokens, 0)) }

// windowsOf returns the fixed windows of a key.
func windowsOf(p *tiered.Policy, l tiered.Limit, key string, begin time.Time) func(at int64) (from, to int64) {
	if !l.Calendar.IsZero() {
		windows := l.Calendar.Windows()
		return func(at int64) (int64, int64) {
			from, to := windows.At(begin.Add(time.Duration(at)))
			return int64(from.Sub(begin)), int64(to.Sub(begin))
		}
	}
	per := max(int64(l.Per), 1000)
	phase := -begin.UnixNano()
	if !p.Calendar {
		phase += local.Phase(key, per/1000) * 1000
	}
	return func(at int64) (int64, int64) {
		into := (at - phase) % per
		return at - into, at - into + per
	}
}

// takers returns an ideal limiter of which nothing is taken.
func (ls *limits) takers() (all []taker) {
	for _, l := range ls.all {
		all = append(all, l.taker())
	}
	return all
}

func (ls *limits) judges() (all []judge) {
	for _, l := range ls.all {
		all = append(all, l.judge())
	}
	return all
}

// rests returns from when on a key is as if nobody had asked for it, at the latest, if it was so
// from an earlier time on and then used tokens.
func (ls *limits) rests(earlier float64, at time.Duration, tokens int64) float64 {
	flowsBack := 0.0
	if ls.refill > 0 {
		flowsBack = float64(tokens)*ls.refill + 1
	}
	return max(max(earlier, float64(at))+flowsBack, float64(int64(at)+ls.rest+1))
}
