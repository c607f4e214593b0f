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
		tiered.Granted: {&r.Granted, &c.Spent}, tiered.Fallback: {&r.Fallback, &c.Fallback}, tiered.Open: {&r.Open, &c.Open},
		tiered.Shadowed: {&r.Shadowed, &c.Shadowed}, tiered.Limited: {&r.Limited, &c.Limited},
		tiered.FallbackSpent: {&r.FallbackSpent, &c.FallbackSpent}, tiered.Unavailable: {&r.Unavailable, &c.Unavailable},
		tiered.ExceedsBurst: {&r.ExceedsBurst, none}, tiered.InvalidKey: {&r.Invalid, none}, tiered.InvalidCost: {&r.Invalid, none},
		tiered.Canceled: {&r.Canceled, none}, tiered.Unknown: {none, none},
	}[d.Reason]
	switch {
	case d.Reason == tiered.Granted && d.Burst == math.MaxInt64:
		to = [2]*int64{&r.Unlimited, &c.Unlimited}
	case d.Reason == tiered.ExceedsBurst && d.Burst == 0:
		to = [2]*int64{&r.Blocked, &c.Blocked}
	case d.Tier == tiered.Remote && d.Reason == tiered.Granted:
		r.GrantedByRedis++
	case d.Tier == tiered.Remote && d.Reason == tiered.Limited:
		r.LimitedByRedis++
	}
	*to[0]++
	*to[1] += max(n, 0)
}

// admitted counts a request that was admitted, nobody says how. A request over parts of n tokens counts only them.
func (c *counts) admitted(n int64, unlimited, unsure bool) {
	c.tiers = true
	switch {
	case unsure:
		c.unsure, c.quiet = true, true
	case unlimited:
		c.Requests.Unlimited++
		c.Unlimited += n
	default:
		c.Requests.Granted++
		c.Spent += n
	}
}

// waited counts the end of WaitN.
func (c *counts) waited(err error, n int64, took time.Duration, unlimited, unsure bool) {
	c.LongestWait = max(c.LongestWait, took)
	var refused *tiered.LimitedError
	switch {
	case err == nil:
		c.Waited++
		c.admitted(n, unlimited, unsure)
		return
	case errors.As(err, &refused):
		c.count(&refused.Decision, n)
	}
	c.GaveUp++
	c.tiers = true
	c.unsure, c.quiet = c.unsure || unsure, c.quiet || unsure
}

// figures compares the figures of a process with what its callers saw.
func (p *process) figures() {
	if p.closed || p.waits("") > 0 {
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
		is("stats", "Waiting", y.Waiting, 0)
		is("stats", "Waited", y.Waited, min(y.Waited, c.Waited)) // not all had to wait
		is("stats", "GaveUp", y.GaveUp, min(y.GaveUp, c.GaveUp))
		is("stats", "LongestWait", int64(y.LongestWait), int64(min(y.LongestWait, c.LongestWait)))
		is("stats", "Granted", y.Granted, y.Spent+y.Returned+y.Burnt+y.Held)
		if r := y.Requests; !c.quiet && !c.parts {
			is("shadow", "Requests.Shadowed", r.Shadowed, c.Requests.Shadowed)
			is("shadow", "Shadowed", y.Shadowed, c.Shadowed)
		}
		if c.unsure {
			continue
		}
		is("stats", "Spent", y.Spent, c.Spent-y.Standing-y.Refunded-y.Charged)
		is("stats", "Fallback", y.Fallback, c.Fallback)
		is("stats", "Open", y.Open, c.Open)
		is("stats", "Unlimited", y.Unlimited, c.Unlimited)
		r := y.Requests
		switch {
		case c.parts:
			continue
		case x.Shadow:
			is("stats", "Requests.Refused()", r.Refused(), c.Requests.Refused()+c.Requests.Shadowed)
			is("stats", "Requests.Admitted()", r.Admitted(), c.Requests.Admitted())
			continue
		case c.tiers:
			r.GrantedByRedis, r.LimitedByRedis = c.Requests.GrantedByRedis, c.Requests.LimitedByRedis
		}
		is("stats", "Limited", y.Limited, c.Limited)
		is("stats", "FallbackSpent", y.FallbackSpent, c.FallbackSpent)
		is("stats", "Unavailable", y.Unavailable, c.Unavailable)
		is("stats", "Blocked", y.Blocked, c.Blocked)
		if r != c.Requests {
			p.blame("stats", fmt.Sprintf("if r := p[%d][%d].Group().Stats().Policies[%q].Requests; r != (%#v) {\n\tt.Errorf(\"%%+v\", r)\n}",
				p.slot, i, x.Name, c.Requests), "process %d, policy %s: %+v, and there were %+v", p.slot, x.Name, r, c.Requests)
		}
	}
}
