package answers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

const mostRest = 20 * time.Minute // nobody comes back later: a process has work in each second of it

// judge judges a Decision by itself.
func (w *player) judge(d *tiered.Decision) {
	if d.Remaining < 0 || d.Remaining > d.Burst {
		w.blame("range", "if d.Remaining < 0 || d.Remaining > d.Burst {\n\tt.Errorf(\"%d of %d remain\", d.Remaining, d.Burst)\n}",
			"%d of %d remain: %v", d.Remaining, d.Burst, *d)
	}
	if d.ResetAfter < d.RetryAfter && d.Reason == tiered.Limited {
		w.blame("range", "if d.ResetAfter < d.RetryAfter {\n\tt.Errorf(\"retry after %v, reset after %v\", d.RetryAfter, d.ResetAfter)\n}",
			"retry after %v, reset after %v: %v", d.RetryAfter, d.ResetAfter, *d)
	}
	if d.RetryAfter < 0 || d.ResetAfter < 0 || d.RetryAfter > 0 && d.Reason != tiered.Limited && d.Reason != tiered.ShareSpent {
		w.blame("range", "t.Errorf(\"%+v\", d)", "%v: retry after %v, reset after %v", d.Reason, d.RetryAfter, d.ResetAfter)
	}
}

// settled reports whether a policy has been the same everywhere for a while, and the store there, and nobody waits.
func (w *player) settled(which int, key string) bool {
	return !w.isDown() && time.Now().After(w.rough[which]) && w.waits(name(which, key)) == 0
}

// waits returns how many callers wait for a key of a policy.
func (w *player) waits(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting[name]
}

// alone reports whether no other process holds tokens of a key.
func (p *process) alone(which int, key string) bool {
	const past = 10 * second // longer than a lease
	for _, q := range p.slots {
		if q == p {
			continue
		}
		s := q.group.Stats()
		if s.Policies[p.Policies[which].Name].Held > 0 || s.Leaving > 0 || time.Since(q.touched[name(which, key)]) < past ||
			time.Since(q.opened) < past || p.Policies[which].Standing != tiered.StandingOff {
			return false
		}
	}
	return p.Policies[which].Standing == tiered.StandingOff || time.Since(p.opened) > 69*second
}

// grain is how exactly a policy counts: the longest time of a token, or of a block.
func grain(p tiered.Policy, rule tiered.Limit) (longest time.Duration) {
	all := limits(p)
	if rule != (tiered.Limit{}) {
		all = []tiered.Limit{rule}
	}
	for _, l := range all {
		switch p.Algorithm {
		case tiered.TokenBucket:
			longest = max(longest, tokenTime(l))
		case tiered.SlidingWindow:
			longest = max(longest, l.Precision)
			if l.Precision == 0 {
				longest = max(longest, lua.DefaultBlock(l.Per))
			}
		}
	}
	return max(longest, 2*time.Microsecond)
}

// longest is the longest time for which a key may be refused: all that it can owe, and a lease.
func (w *player) longest(which int, key string) (most time.Duration) {
	p := w.Policies[which]
	all := limits(p)
	if rule := w.Rules[which][key]; rule != (tiered.Limit{}) {
		all = []tiered.Limit{rule}
	}
	for _, l := range all {
		d := l.Per + 2*grain(p, l)
		if p.Algorithm == tiered.TokenBucket {
			d = tokenTime(l) * time.Duration(burst(l)+max(p.MaxDebt, burst(l)))
		}
		most = max(most, d)
	}
	return most + max(4*p.Lease.Period, second) + second
}

// back asks until it is refused, and comes back when that says.
func (p *process) back(x Step, which int, key string) {
	var d tiered.Decision
	call := fmt.Sprintf("p[%d][%d].AllowN(ctx, %q, %d)", p.slot, which, key, x.N)
	comes := func(after time.Duration) (e tiered.Decision) {
		p.sleep(after)
		e = p.ask(which, key, x.N)
		p.returns[p.at] += fmt.Sprintf("\nsleep(%s)\nd = %s", dur(after), call)
		return e
	}
	for range 40 {
		if d = p.ask(which, key, x.N); !d.Allowed || d.Burst == math.MaxInt64 {
			break
		}
	}
	policy := p.limiters[which].Policy()
	told := d.RetryAfter
	share := d.Reason == tiered.ShareSpent && p.isDown() && !p.store.hangs.Load() && p.waits(name(which, key)) == 0
	if d.Allowed || told <= 0 || told > mostRest || d.Reason != tiered.Limited && !share {
		return
	}
	if share {
		if e := comes(told); !e.Allowed {
			p.blame("share", comesBack, "told %v by %v, came back then, and is %v: told %v", told, d.Tier, e.Reason, e.RetryAfter)
		}
		return
	}
	if !p.settled(which, key) {
		return
	}
	alone := p.alone(which, key)
	early := told - grain(policy, p.Rules[which][key])
	if alone && x.Pick%3 == 0 && early > 0 && time.Since(p.gave[name(which, key)]) > 2*second {
		e := comes(early)
		if e.Allowed {
			p.blame("early", "t.Error(\"admitted earlier\")", "told %v by %v, and admitted after %v", told, d.Tier, early)
			return
		}
		if told -= early; e.RetryAfter > told && e.RetryAfter <= told+2*time.Microsecond {
			told = e.RetryAfter // both came between two microseconds of the store's clock
		}
	}
	bound := p.longest(which, key)
	begin := time.Now()
	for tries := 1; ; tries++ {
		e := comes(told)
		switch {
		case e.Allowed || !p.settled(which, key):
			return
		case alone:
			p.blame("retry", comesBack, "told %v by %v, came back then, and is %v: told %v by %v, %d remain",
				told, d.Tier, e.Reason, e.RetryAfter, e.Tier, e.Remaining)
			return
		case tries > 10 || time.Since(begin) > bound || e.RetryAfter > bound:
			p.blame("leased", comesBack, "came back %d times, for %v, and is told %v: %v is enough for all that is out",
				tries, time.Since(begin), e.RetryAfter, bound)
			return
		}
		if told = e.RetryAfter; told <= 0 || told > mostRest {
			return
		}
	}
}

const comesBack = "if !d.Allowed {\n\tt.Errorf(\"came back when it was told, and is told %v\", d.RetryAfter)\n}"

// look peeks, and then asks.
func (p *process) look(which int, key string, n int64) {
	var v tiered.Decision
	alone, judge := p.alone(which, key), "peek"
	if p.isDown() {
		judge = "outage"
	} else if !p.settled(which, key) {
		alone = false
	}
	p.timed(p.Budget, func() { v = p.limiters[which].PeekN(context.Background(), key, n) })
	p.judge(&v)
	took := time.Now()
	d := p.ask(which, key, n)
	if !alone || p.store.hangs.Load() || time.Since(took) > 0 {
		return
	}
	want := v
	want.Tier, want.LimitNumber = d.Tier, d.LimitNumber
	if v.Allowed && v.Burst < math.MaxInt64 && v.Reason != tiered.Shadowed {
		want.ResetAfter = d.ResetAfter
		full := v.Remaining == v.Burst && d.Remaining == d.Burst // the larger limit of another process governs
		if v.Reason == tiered.Granted && !full {
			want.Remaining -= n
		}
	}
	if want != d {
		p.blame(judge, "t.Errorf(\"Peek says %+v\\nAllow says %+v\", v, d)", "Peek says %+v\nAllow says %+v", v, d)
	}
}

// each compares PeekEach with Peek.
func (p *process) each(which int, key string) {
	l := p.limiters[which]
	var all []tiered.Decision
	var err error
	v := l.Peek(context.Background(), key)
	p.judge(&v)
	begin := time.Now()
	p.timed(p.Budget, func() { all, err = l.PeekEach(context.Background(), key) })
	if err != nil {
		if !p.isDown() && p.settled(which, key) {
			p.blame("each", fmt.Sprintf("t.Error(%q)", err), "PeekEach: %v", err)
		}
		return
	}
	tightest := all[0]
	for _, d := range all {
		p.judge(&d)
		if d.Remaining < tightest.Remaining {
			tightest.Remaining = d.Remaining
		}
		tightest.RetryAfter = max(tightest.RetryAfter, d.RetryAfter)
		tightest.Allowed = tightest.Allowed && d.Allowed
	}
	if p.isDown() || !p.settled(which, key) || time.Since(begin) > 0 || v.Reason == tiered.Shadowed || v.Tier != tiered.Remote {
		return // what a process knows may be older
	}
	if p.Policies[which].Standing != tiered.StandingOff && len(all) > 1 {
		tightest.Remaining = v.Remaining // the share of one limit may be full, and that of another empty
	}
	if later := tightest.RetryAfter - v.RetryAfter; tightest.Allowed != v.Allowed || tightest.Remaining != v.Remaining || later.Abs() > time.Microsecond {
		p.blame("each", fmt.Sprintf("v := p[%d][%d].Peek(ctx, %q)\neach, _ := p[%[1]d][%[2]d].PeekEach(ctx, %[3]q)\n"+
			"t.Errorf(\"Peek says %%+v\\nPeekEach says %%+v\", v, each)", p.slot, which, key), "Peek says %+v\nPeekEach says %+v", v, all)
	}
}

// counts are the requests of a policy in a process, as its callers saw them, and their tokens.
type counts struct {
	requests       tiered.Requests
	tokens         int64 // granted, or charged afterwards
	shared, open   int64
	limited        int64
	unlimited      int64
	blocked        int64
	unsure         bool // of some requests it is not known how they were decided
	quiet          bool // nor whether Shadow admitted them
	parts          bool // some requests were decided in parts, each of which counts
	tiers          bool // of some it is not known by whom
	served, gaveUp int64
	longest        time.Duration
}

func (c *counts) admit(n int64) {
	c.requests.Granted++
	c.tokens += n
	c.tiers = true
}

func (c *counts) alone(r tiered.Reason, n int64) {
	if r == tiered.Shared {
		c.shared += n
	} else {
		c.open += n
	}
}

// count counts a request.
func (c *counts) count(d *tiered.Decision, n int64) {
	r := &c.requests
	switch d.Reason {
	case tiered.Granted:
		if d.Burst == math.MaxInt64 {
			r.Unlimited++
			c.unlimited += n
			return
		}
		r.Granted++
		c.tokens += n
		if d.Tier == tiered.Remote {
			r.GrantedByRedis++
		}
	case tiered.Shared:
		r.Shared++
		c.alone(d.Reason, n)
	case tiered.Open:
		r.Open++
		c.alone(d.Reason, n)
	case tiered.Shadowed: // it is not known why
		r.Shadowed++
	case tiered.Limited:
		r.Limited++
		c.limited += n
		if d.Tier == tiered.Remote {
			r.LimitedByRedis++
		}
	case tiered.ShareSpent:
		r.ShareSpent++
	case tiered.Unavailable:
		r.Unavailable++
	case tiered.ExceedsBurst:
		if d.Burst == 0 {
			r.Blocked++
			c.blocked += n
		} else {
			r.ExceedsBurst++
		}
	case tiered.InvalidKey, tiered.InvalidCost:
		r.Invalid++
	case tiered.Canceled:
		r.Canceled++
	}
}

// partly counts what AllowAtMost took.
func (c *counts) partly(d *tiered.Decision, n int64) {
	c.parts = true
	switch {
	case n == 0:
	case d.Reason == tiered.Granted && d.Burst < math.MaxInt64:
		c.tokens += n
	case d.Reason == tiered.Granted:
		c.unlimited += n
	default:
		c.unsure = true
	}
}

// waited counts the end of WaitN.
func (c *counts) waited(err error, n int64, took time.Duration, unsure bool) {
	c.longest = max(c.longest, took)
	c.tiers = true
	var refused *tiered.LimitedError
	if err == nil {
		c.served++
	} else {
		c.gaveUp++
	}
	switch {
	case unsure:
		c.unsure, c.quiet = true, true
	case err == nil:
		c.admit(n)
	case errors.As(err, &refused):
		c.count(&refused.Decision, n)
	}
}

// figures compares the figures of a process with what its callers saw.
func (p *process) figures() {
	if p.closed {
		return
	}
	p.mu.Lock()
	busy := 0
	for _, n := range p.waiting {
		busy += n
	}
	p.mu.Unlock()
	if busy > 0 {
		return
	}
	s := p.group.Stats()
	for i, x := range p.Policies {
		y, c := s.Policies[x.Name], p.counts[i]
		judge := "stats"
		is := func(what string, is, want int64) {
			if is != want {
				p.blame(judge, fmt.Sprintf("if n := p[%d][%d].Group().Stats().Policies[%q].%s; n != %d {\n\tt.Errorf(\"%[4]s is %%d, not %[5]d\", n)\n}",
					p.slot, i, x.Name, what, want), "process %d, policy %s: %s is %d, and %d were seen: %+v", p.slot, x.Name, what, is, want, y)
			}
		}
		is("Waiting", y.Waiting, 0)
		if y.Waited > c.served || y.GaveUp > c.gaveUp || y.LongestWait > c.longest {
			p.blame("stats", "t.Error()", "%d waited, %d gave up, for up to %v, and there were %d, %d, %v",
				y.Waited, y.GaveUp, y.LongestWait, c.served, c.gaveUp, c.longest)
		}
		is("Granted", y.Granted, y.Spent+y.Returned+y.Burnt+y.Held)
		r := y.Requests
		if !c.quiet && !c.parts {
			judge = "shadow"
			is("Requests.Shadowed", r.Shadowed, c.requests.Shadowed)
			judge = "stats"
		}
		if c.unsure {
			continue
		}
		is("Spent", y.Spent, c.tokens-y.Standing-y.Refunded-y.Charged)
		is("Shared", y.Shared, c.shared)
		is("Open", y.Open, c.open)
		is("Unlimited", y.Unlimited, c.unlimited)
		if c.parts {
			continue
		}
		if x.Shadow {
			is("Requests.Refused()", r.Refused(), c.requests.Refused()+c.requests.Shadowed)
			is("Requests.Admitted()", r.Admitted(), c.requests.Admitted())
			continue
		}
		is("Limited", y.Limited, c.limited)
		is("Blocked", y.Blocked, c.blocked)
		if c.tiers {
			r.GrantedByRedis, r.LimitedByRedis = c.requests.GrantedByRedis, c.requests.LimitedByRedis
		}
		if r != c.requests {
			p.blame("stats", fmt.Sprintf("if r := p[%d][%d].Group().Stats().Policies[%q].Requests; r != (%#v) {\n\tt.Errorf(\"%%+v\", r)\n}",
				p.slot, i, x.Name, c.requests), "process %d, policy %s: %+v, and there were %+v", p.slot, x.Name, r, c.requests)
		}
	}
}
