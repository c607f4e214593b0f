package tiered

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// eighths returns Standing in eighths.
func (p Policy) eighths() int { return int(8 * p.Standing) }

// splits reports whether the policy's limits can be split: those of a token bucket, and of windows
// that begin at the same instant in all processes. Of the calendar a key may have windows that
// overlap, because its billing day moves, and no two of them are split alike.
func (p Policy) splits() bool {
	return !p.Algorithm.has(lua.Window) || p.Algorithm.has(lua.Phased) && p.Limit.Calendar.IsZero()
}

// longestWindow returns how long a window of the policy may last by which limits are split, 0 if
// there is none.
func (p Policy) longestWindow() (longest time.Duration) {
	if p.Algorithm.has(lua.Phased) && p.splits() {
		longest = p.retention()
		for _, plan := range p.Plans {
			longest = max(longest, plan.retention(p.Algorithm))
		}
	}
	return longest
}

// splitOne splits a limit of a key, which may be one of several, into eighths. rest is the part that
// Redis has.
func (p Policy) splitOne(l Limit, several bool, eighths int) (rest Limit, share standing.Limit, err error) {
	if p.Algorithm.has(lua.Window) {
		share, l.Tokens = standing.SplitWindow(l.Tokens, l.longest(), int64(eighths))
		return l, share, nil
	}
	split := standing.Split
	if several {
		split = standing.SplitInPeriod
	}
	share, r, err := split(standing.Rate{Burst: l.burst(), Tokens: l.Tokens, Per: l.Per}, int64(eighths))
	l.Burst, l.Tokens, l.Per = r.Burst, r.Tokens, r.Per
	return l, share, err
}

// split returns p with the parts of the limits that Redis has, and what standing shares of so many
// eighths have of each. It reports false if Redis has the whole limits. Every process decides that
// by the limits alone.
func (p Policy) split(eighths int) (rest Policy, shares []standing.Limit, ok bool) {
	if eighths == 0 || p.Limit.rule() != local.ByLimit || !p.splits() {
		return p, nil, false
	}
	var rests []Limit
	each := p.Limit.Each()
	for _, l := range each {
		r, share, err := p.splitOne(l, len(each) > 1, eighths)
		if err != nil { // of a policy that wants no shares itself
			return p, nil, false
		}
		rests, shares = append(rests, r), append(shares, share)
	}
	if !p.Algorithm.has(lua.Window) {
		for i, l := range each {
			shares[i] = shares[i].Owing(max(p.MaxDebt, l.burst()), int64(eighths))
		}
	}
	p.Limit, p.MaxDebt = rests[0].And(rests[1:]...), standing.RestOfDebt(p.MaxDebt, int64(eighths))
	return p, shares, true
}
