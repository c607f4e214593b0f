package legal

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

const (
	ms     = time.Millisecond
	second = time.Second
	day    = 24 * time.Hour
	year   = 365 * day
)

// drawer draws what validation accepts.
type drawer struct{ *rand.Rand }

// pick returns one of several values, each equally likely.
func pick[T any](d *drawer, from ...T) T { return from[d.IntN(len(from))] }

// one returns true one time in n.
func (d *drawer) one(n int) bool { return d.IntN(n) == 0 }

// closed is a Group that accepts no policy any more, but still reports what is wrong with one. It only validates.
var closed = sync.OnceValue(func() *tiered.Group {
	g, err := tiered.NewGroup(remote.NewMemory(), nil)
	if err != nil {
		panic(err)
	}
	_ = g.Close(context.Background())
	return g
})

// valid reports whether validation accepts a policy.
func valid(p tiered.Policy) bool {
	_, err := closed().NewLimiter(p)
	return err.Error() == "tiered: the Group is closed"
}

// Algorithms are those that are drawn. A history knows what each promises.
var Algorithms = []tiered.Algorithm{tiered.TokenBucket, tiered.FixedWindow, tiered.SlidingLog, tiered.SlidingWindow}

// policy draws policies until one is valid.
func (d *drawer) policy() tiered.Policy {
	for {
		p := tiered.Policy{
			Name: "p", Algorithm: pick(d, Algorithms...), FailMode: tiered.FailMode(d.IntN(3)),
			Lease: d.lease(),
		}
		p.Calendar = p.Algorithm == tiered.FixedWindow && d.one(2)
		p.Limit = d.limit(p.Algorithm)
		for range pick(d, 0, 0, 0, 0, 1, 1, 2, 7) {
			if p.Algorithm == tiered.TokenBucket || p.Algorithm == tiered.SlidingWindow {
				p.Also = append(p.Also, d.limit(p.Algorithm))
			}
		}
		if p.Algorithm == tiered.TokenBucket {
			p.MaxDebt = pick(d, 0, 0, d.tokens())
		}
		if valid(p) {
			return d.withStanding(p)
		}
	}
}

// withStanding returns p, and often with standing shares if it may have them.
func (d *drawer) withStanding(p tiered.Policy) tiered.Policy {
	with := p
	with.Standing = pick(d, tiered.StandingOff, tiered.StandingSplit, tiered.StandingOn, tiered.StandingOn)
	if valid(with) {
		return with
	}
	return p
}

func (d *drawer) lease() tiered.Lease {
	none := tiered.Lease{Size: tiered.NoLease}
	return pick(d, tiered.Lease{}, tiered.Lease{}, none, none, tiered.Lease{Size: 1},
		tiered.Lease{Size: int64(1 + d.IntN(30))},
		tiered.Lease{Period: 5 * ms}, tiered.Lease{Period: time.Minute})
}

// tokens returns a number that is usually small, so that errors show.
func (d *drawer) tokens() int64 {
	return pick(d, int64(1), 2, 3, 5, 10, 10, 30, 50, 100, 100, 400, 1000, 10_000, 1<<20, 1<<40)
}

// per returns a time from a microsecond to the longest, usually one that ends within a plan.
func (d *drawer) per() time.Duration {
	return pick(d, time.Microsecond, 7*time.Microsecond, ms, 20*ms, 100*ms, 300*ms, 500*ms, 750*ms, second, second,
		2*second, 5*second, 30*second, time.Minute, time.Minute, time.Hour, time.Hour, day, day, 30*day, year,
		10*year, 40*year, 100*year)
}

func (d *drawer) limit(a tiered.Algorithm) tiered.Limit {
	l := tiered.Limit{Tokens: d.tokens(), Per: d.per()}
	switch a {
	case tiered.TokenBucket:
		l.Burst = pick(d, 0, 0, 1, d.tokens(), d.tokens())
	case tiered.SlidingWindow:
		l.Precision = d.precision(l.Per)
	}
	return l
}

func (d *drawer) precision(per time.Duration) time.Duration {
	return pick(d, 0, 0, per, per/2, per/7, per/100, per/500).Truncate(time.Microsecond)
}

// another draws a limit that may replace p's by SetPolicy, PerKey or a deploy.
func (d *drawer) another(p tiered.Policy) tiered.Limit {
	for {
		next := p
		l := &next.Limit
		if d.one(6) {
			*l = pick(d, tiered.Unlimited(), tiered.Blocked())
			if valid(next) {
				return *l
			}
			continue
		}
		switch n := d.IntN(8); {
		case n < 3: // another number
			l.Tokens = max(l.Tokens*pick(d, int64(2), 4, 100, 1000)/pick(d, int64(1), 8, 20, 10_000), 1)
		case n < 5 && p.Algorithm == tiered.TokenBucket:
			l.Burst = d.tokens()
		case n < 7 && p.Algorithm == tiered.TokenBucket && len(p.Also) == 0:
			if l.Burst == 0 {
				l.Burst = l.Tokens
			}
			l.Tokens, l.Per = d.tokens(), d.per()
		case p.Algorithm == tiered.SlidingWindow:
			if d.one(2) {
				l.Per = d.per()
			}
			l.Precision = d.precision(l.Per)
		default:
			l.Tokens = d.tokens()
		}
		if valid(next) {
			return next.Limit
		}
	}
}

// rule draws a result of PerKey.
func (d *drawer) rule(p tiered.Policy) tiered.Limit {
	if d.one(2) {
		return pick(d, tiered.Unlimited(), tiered.Blocked())
	}
	if d.one(2) {
		return tiered.Limit{}
	}
	p.MaxDebt = 0 // a larger burst is the key's MaxDebt
	return d.another(p)
}

// after returns the pause before a step: almost none, or as long as something takes that the limiter does.
func (d *drawer) after(per time.Duration) time.Duration {
	most := pick(d, 0, 0, ms, 20*ms, 20*ms, 300*ms, 300*ms, 2*second, min(per, 20*second), min(2*per, 30*second))
	if d.one(60) {
		most = 20 * time.Minute
	}
	return time.Duration(d.Int64N(int64(most)+1)) / 1000 * 1000
}
