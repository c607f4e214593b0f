package tiered

import (
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// splitOne splits one of the policy's limits. rest is the part that Redis has.
func (p Policy) splitOne(l Limit) (rest Limit, share standing.Limit, err error) {
	split := standing.Split
	if len(p.Also) > 0 {
		split = standing.SplitInPeriod
	}
	share, r, err := split(standing.Rate{Burst: l.burst(), Tokens: l.Tokens, Per: l.Per})
	l.Burst, l.Tokens, l.Per = r.Burst, r.Tokens, r.Per
	return l, share, err
}

// split returns p with the parts of the limits that Redis has, and what standing shares have of
// each. It reports false if Redis has the whole limits. Every process decides that by the limits
// alone.
func (p Policy) split() (rest Policy, shares []standing.Limit, ok bool) {
	if p.Standing == StandingOff || p.Limit.rule() != local.ByLimit {
		return p, nil, false
	}
	var rests []Limit
	for _, l := range p.limits() {
		r, share, err := p.splitOne(l)
		if err != nil { // the limit of a single key
			return p, nil, false
		}
		rests, shares = append(rests, r), append(shares, share)
	}
	for i, l := range p.limits() {
		shares[i] = shares[i].Owing(max(p.MaxDebt, l.burst()))
	}
	p.Limit, p.Also, p.MaxDebt = rests[0], rests[1:], standing.RestOfDebt(p.MaxDebt)
	return p, shares, true
}
