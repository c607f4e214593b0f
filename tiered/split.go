package tiered

import (
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// eighths returns Standing in eighths.
func (p Policy) eighths() int { return int(8 * p.Standing) }

// splitOne splits one of the policy's limits into eighths. rest is the part that Redis has.
func (p Policy) splitOne(l Limit, eighths int) (rest Limit, share standing.Limit, err error) {
	split := standing.Split
	if len(p.Also) > 0 {
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
	if eighths == 0 || p.Limit.rule() != local.ByLimit || p.Algorithm.has(lua.Window) {
		return p, nil, false
	}
	var rests []Limit
	for _, l := range p.limits() {
		r, share, err := p.splitOne(l, eighths)
		if err != nil { // of a policy that wants no shares itself
			return p, nil, false
		}
		rests, shares = append(rests, r), append(shares, share)
	}
	for i, l := range p.limits() {
		shares[i] = shares[i].Owing(max(p.MaxDebt, l.burst()), int64(eighths))
	}
	p.Limit, p.Also, p.MaxDebt = rests[0], rests[1:], standing.RestOfDebt(p.MaxDebt, int64(eighths))
	return p, shares, true
}
