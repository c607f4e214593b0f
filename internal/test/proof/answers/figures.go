package answers

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// counts are the figures of a policy in a process, as its callers saw them. Spent has all that was granted or charged.
type counts struct {
	tiered.PolicyStats
	unsure bool // of some requests it is not known how they were decided
	quiet  bool // nor whether Shadow admitted them
	parts  bool // some requests were decided in parts, each of which counts
	tiers  bool // of some it is not known by whom
}

// count counts a request of n tokens.
func (c *counts) count(d *tiered.Decision, n int64) {
	r, none := &c.Requests, new(int64)
	to := map[tiered.Reason][2]*int64{
		tiered.Granted: {&r.Granted, &c.Leases.Spent}, tiered.Fallback: {&r.Fallback, &c.Tokens.Fallback},
		tiered.Open:     {&r.Open, &c.Tokens.Open},
		tiered.Shadowed: {&r.Shadowed, &c.Tokens.Shadowed}, tiered.Limited: {&r.Limited, &c.Tokens.Limited},
		tiered.FallbackSpent: {&r.FallbackSpent, &c.Tokens.FallbackSpent}, tiered.Unavailable: {&r.Unavailable, &c.Tokens.Unavailable},
		tiered.ExceedsBurst: {&r.ExceedsBurst, none}, tiered.InvalidKey: {&r.Invalid, none}, tiered.InvalidCost: {&r.Invalid, none},
		tiered.Canceled: {&r.Canceled, none}, tiered.Unknown: {none, none},
	}[d.Reason]
	switch {
	case d.Reason == tiered.Granted && d.Burst == math.MaxInt64:
		to = [2]*int64{&r.Unlimited, &c.Tokens.Unlimited}
	case d.Reason == tiered.ExceedsBurst && d.Burst == 0:
		to = [2]*int64{&r.Blocked, &c.Tokens.Blocked}
	case d.Tier == tiered.Remote && d.Reason == tiered.Granted:
		r.GrantedByRedis++
	case d.Tier == tiered.Remote && d.Reason == tiered.Limited:
		r.LimitedByRedis++
	}
	*to[0]++
	*to[1] += max(n, 0)
	switch {
	case d.Reason == tiered.Granted, d.Reason == tiered.Fallback, d.Reason == tiered.Open:
		r.Allowed++
	case to[0] != none && d.Reason != tiered.Shadowed:
		r.Refused++
	}
}

// admitted counts a request that was admitted, nobody says how. A request over parts of n tokens counts only them.
func (c *counts) admitted(n int64, unlimited, unsure bool) {
	c.tiers = true
	switch {
	case unsure:
		c.unsure, c.quiet = true, true
	case unlimited:
		c.Requests.Allowed++
		c.Requests.Unlimited++
		c.Tokens.Unlimited += n
	default:
		c.Requests.Allowed++
		c.Requests.Granted++
		c.Leases.Spent += n
	}
}

// waited counts the end of WaitN.
func (c *counts) waited(err error, n int64, took time.Duration, unlimited, unsure bool) {
	c.Waiting.Longest = max(c.Waiting.Longest, took)
	var refused *tiered.LimitedError
	switch {
	case err == nil:
		c.Waiting.Admitted++
		c.admitted(n, unlimited, unsure)
		return
	case errors.As(err, &refused):
		c.count(&refused.Decision, n)
	}
	c.Waiting.GaveUp++
	c.tiers = true
	c.unsure, c.quiet = c.unsure || unsure, c.quiet || unsure
}

// figures compares the figures of a process with what its callers saw.
func (p *process) figures() {
	waiting := 0
	for _, callers := range p.waiting {
		waiting += callers
	}
	if p.closed || waiting > 0 {
		return
	}
	s := p.group.Stats()
	for i, x := range p.Policies {
		y, c := s.Policies[x.Name], p.counts[i]
		is := func(judge, what string, is, want int64) {
			if is != want {
				p.blame(judge, fmt.Sprintf("if n := p[%d][%d].Group().Stats().Policies[%q].%s; n != %d {\n\tt.Errorf(\"%[4]s is %%d, not %[5]d\", n)\n}",
					p.slot, i, x.Name, what, want), "process %d, policy %s: %s is %d, and %d were seen: %+v", p.slot, x.Name, what, is, want, y)
			}
		}
		is("stats", "Waiting.Now", y.Waiting.Now, 0)
		is("stats", "Waiting.Admitted", y.Waiting.Admitted, min(y.Waiting.Admitted, c.Waiting.Admitted)) // not all had to wait
		is("stats", "Waiting.GaveUp", y.Waiting.GaveUp, min(y.Waiting.GaveUp, c.Waiting.GaveUp))
		is("stats", "Waiting.Longest", int64(y.Waiting.Longest), int64(min(y.Waiting.Longest, c.Waiting.Longest)))
		is("stats", "Leases.Granted", y.Leases.Granted, y.Leases.Spent+y.Leases.Returned+y.Leases.Burnt+y.Leases.Held)
		if r := y.Requests; !c.quiet && !c.parts {
			is("shadow", "Requests.Shadowed", r.Shadowed, c.Requests.Shadowed)
			is("shadow", "Tokens.Shadowed", y.Tokens.Shadowed, c.Tokens.Shadowed)
		}
		if c.unsure {
			continue
		}
		is("stats", "Leases.Spent", y.Leases.Spent, c.Leases.Spent-y.Standing.Spent-y.Costs.Refunded-y.Costs.Charged)
		is("stats", "Tokens.Fallback", y.Tokens.Fallback, c.Tokens.Fallback)
		is("stats", "Tokens.Open", y.Tokens.Open, c.Tokens.Open)
		is("stats", "Tokens.Unlimited", y.Tokens.Unlimited, c.Tokens.Unlimited)
		r := y.Requests
		switch {
		case c.parts:
			continue
		case x.Shadow:
			is("stats", "Requests.Refused", r.Refused, c.Requests.Refused+c.Requests.Shadowed)
			is("stats", "Requests.Allowed", r.Allowed, c.Requests.Allowed)
			continue
		case c.tiers:
			r.GrantedByRedis, r.LimitedByRedis = c.Requests.GrantedByRedis, c.Requests.LimitedByRedis
		}
		is("stats", "Tokens.Limited", y.Tokens.Limited, c.Tokens.Limited)
		is("stats", "Tokens.FallbackSpent", y.Tokens.FallbackSpent, c.Tokens.FallbackSpent)
		is("stats", "Tokens.Unavailable", y.Tokens.Unavailable, c.Tokens.Unavailable)
		is("stats", "Tokens.Blocked", y.Tokens.Blocked, c.Tokens.Blocked)
		if r != c.Requests {
			p.blame("stats", fmt.Sprintf("if r := p[%d][%d].Group().Stats().Policies[%q].Requests; r != (%#v) {\n\tt.Errorf(\"%%+v\", r)\n}",
				p.slot, i, x.Name, c.Requests), "process %d, policy %s: %+v, and there were %+v", p.slot, x.Name, r, c.Requests)
		}
	}
}
