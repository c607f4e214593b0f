package answers

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"testing/synctest"
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
	if d.Remaining >= d.Cost && (d.Reason == tiered.Limited || d.Reason == tiered.FallbackSpent) {
		w.blame("range", "if !d.Allowed && d.Remaining >= d.Cost {\n\tt.Errorf(\"%d remain, and %d were refused\", d.Remaining, d.Cost)\n}",
			"%d remain, and %d were refused: %v", d.Remaining, d.Cost, *d)
	}
	if d.ResetAfter < d.RetryAfter && d.Reason == tiered.Limited {
		w.blame("range", "if d.ResetAfter < d.RetryAfter {\n\tt.Errorf(\"retry after %v, reset after %v\", d.RetryAfter, d.ResetAfter)\n}",
			"retry after %v, reset after %v: %v", d.RetryAfter, d.ResetAfter, *d)
	}
	if d.RetryAfter < 0 || d.ResetAfter < 0 || d.RetryAfter > 0 && d.Reason != tiered.Limited && d.Reason != tiered.FallbackSpent {
		w.blame("range", "t.Errorf(\"%+v\", d)", "%v: retry after %v, reset after %v", d.Reason, d.RetryAfter, d.ResetAfter)
	}
}

// settled reports whether a policy has been the same everywhere for a while, and the store there,
// and nobody waits.
func (w *player) settled(a place) bool {
	return !w.isDown() && time.Now().After(w.rough[a.which]) && w.waiting[a] == 0
}

// steady reports whether the store has worked for a while, and nobody waits. A limit that has
// changed is told as it counts.
func (w *player) steady(a place) bool {
	return !w.isDown() && time.Now().After(w.outage) && w.waiting[a] == 0
}

// alone reports whether no other process holds tokens of a key.
func (p *process) alone(a place) bool {
	const past = 10 * second // longer than a lease
	for _, q := range p.slots {
		if q == p {
			continue
		}
		s := q.group.Stats()
		if s.Policies[p.Policies[a.which].Name].Leases.Held > 0 || s.Leaving > 0 || time.Since(q.at(a).touched) < past ||
			time.Since(q.opened) < past || p.Policies[a.which].Standing > 0 {
			return false
		}
	}
	return p.Policies[a.which].Standing == 0 || time.Since(p.opened) > 69*second
}

// grain is how exactly a policy counts: the longest time of a token, or of a block.
func grain(p tiered.Policy, rule tiered.Limit) (longest time.Duration) {
	all := limits(p)
	if rule != (tiered.Limit{}) {
		all = rule.Each()
	}
	for _, l := range all {
		switch p.Algorithm {
		case tiered.TokenBucket:
			if longest = max(longest, tokenTime(l)); p.Standing > 0 {
				longest = max(longest, tokenTime(l)*8/7+1) // Redis has 7/8 of the rate
			}
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
func (w *player) longest(a place) (most time.Duration) {
	p := w.Policies[a.which]
	for _, q := range w.slots {
		all := limits(q.limiters[a.which].Policy())
		if rule := w.Rules[a.which][a.key]; rule != (tiered.Limit{}) {
			all = rule.Each()
		}
		for _, l := range all {
			d := per(l) + 2*grain(p, l)
			if p.Algorithm == tiered.TokenBucket {
				d = tokenTime(l) * time.Duration(burst(l)+max(p.MaxDebt, burst(l)))
			}
			most = max(most, d)
		}
	}
	return most + max(4*p.Lease.Period, second) + second
}

// back asks until it is refused, and comes back when that says.
func (p *process) back(x *Step, a place) {
	var d tiered.Decision
	for range 40 {
		if d = p.askBy(x, a, x.N); !d.Allowed || d.Burst == math.MaxInt64 {
			break
		}
	}
	p.comeBack(d, 0, x, a)
}

// crowd asks for several costs while the store is slow, one after the other, and comes back for one
// that is refused.
func (p *process) crowd(x *Step, a place) {
	all, at := make([]tiered.Decision, len(x.Costs)), make([]time.Duration, len(x.Costs))
	p.code.add("store.slow.Store(true)")
	p.store.slow.Store(true)
	begin := time.Now()
	var crowd sync.WaitGroup
	for i, n := range x.Costs {
		p.code.add("crowd.Go(func() { %s })\nsynctest.Wait()", p.text("AllowN", a, n))
		crowd.Go(func() { all[i], at[i] = p.limiters[a.which].AllowN(ctx, a.key, n), time.Since(begin) })
		synctest.Wait()
	}
	crowd.Wait()
	p.code.add("crowd.Wait()")
	took := time.Since(begin)
	defer func() { // who comes back has the same way
		p.code.add("store.slow.Store(false)")
		p.store.slow.Store(false)
		p.slowed = time.Now().Add(10 * second)
	}()
	p.late(took, p.Budget)
	p.at(a).touched = time.Now()
	last := time.Duration(-1) // when the last was admitted: who was refused until then does not know of it
	for i := range all {
		if p.decision(&all[i], a.which, x.Costs[i]); all[i].Allowed {
			last = max(last, at[i])
		}
	}
	for i := range all {
		i = (i + x.Pick) % len(all)
		if d := all[i]; d.Reason == tiered.Limited && at[i] > last {
			p.slowed = time.Now().Add(second)
			p.comeBack(d, took, x, a)
			return
		}
	}
}

// comeBack comes back after a refusal when that says. It may have been a little sooner that it was
// told.
func (p *process) comeBack(d tiered.Decision, sooner time.Duration, x *Step, a place) {
	comes := func(after time.Duration) tiered.Decision {
		p.sleep(after)
		return p.askBy(x, a, d.Cost)
	}
	policy := p.limiters[a.which].Policy()
	told := d.RetryAfter
	byFallback := d.Reason == tiered.FallbackSpent && p.isDown() && !p.store.hangs.Load() && p.waiting[a] == 0
	if d.Allowed || told <= 0 || told > mostRest || d.Reason != tiered.Limited && !byFallback {
		return
	}
	if byFallback {
		if e := comes(told); !e.Allowed {
			p.blame("fallback", comesBack, "told %v by %v, came back then, and is %v: told %v", told, d.Tier, e.Reason, e.RetryAfter)
		}
		return
	}
	if !p.steady(a) {
		return
	}
	alone := p.alone(a)
	if time.Now().Before(p.slowed) { // it knows when its calls were sent, and not when they were executed
		told, sooner = told+slowness, sooner+3*slowness
	}
	early := told - sooner - grain(policy, p.Rules[a.which][a.key])
	if alone && p.settled(a) && x.Pick%3 == 0 && early > 0 && time.Since(p.at(a).gave) > 2*second {
		e := comes(early)
		if e.Allowed {
			p.blame("early", "t.Error(\"admitted earlier\")", "told %v by %v, and admitted after %v", told, d.Tier, early)
			return
		}
		told -= early
		if e.Tier == tiered.Remote || e.RetryAfter > told && e.RetryAfter <= told+2*time.Microsecond {
			told = e.RetryAfter // it was asked anew, or both came between two microseconds of the store's clock
		}
	}
	bound := p.longest(a)
	begin := time.Now()
	for tries := 1; ; tries++ {
		e := comes(told)
		switch {
		case e.Allowed || !p.steady(a):
			return
		case alone:
			p.blame("retry", comesBack, "told %v by %v, came back then, and is %v: told %v by %v, %d remain",
				told, d.Tier, e.Reason, e.RetryAfter, e.Tier, e.Remaining)
			return
		case !p.settled(a):
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

// scout peeks, and again when that says.
func (p *process) scout(x *Step, a place) {
	d := p.peek(a, x.N)
	if d.Reason != tiered.Limited || d.RetryAfter > mostRest || !p.steady(a) || !p.alone(a) {
		return
	}
	if time.Now().Before(p.slowed) {
		d.RetryAfter += slowness
	}
	p.sleep(d.RetryAfter)
	if e := p.peek(a, x.N); !e.Allowed && p.steady(a) && p.alone(a) {
		p.blame("retry", "if !v.Allowed {\n\tt.Errorf(\"looked when it was told, and is told %v\", v.RetryAfter)\n}",
			"told %v by %v, looked then, and is %v: told %v by %v", d.RetryAfter, d.Tier, e.Reason, e.RetryAfter, e.Tier)
	}
}

// charged judges what a process knows of a key after a charge of n tokens that it heard of at once.
// before is what it knew.
func (p *process) charged(before tiered.Decision, a place, n int64) {
	after := p.limiters[a.which].PeekN(ctx, a.key, 0)
	// There may be more than a burst: with a lease, and where a larger one governed a moment ago.
	more := p.Policies[a.which].Lease.Size != tiered.NoLease || time.Now().Before(p.rough[a.which])
	full := before.Remaining == before.Burst && more
	if before.Reason == tiered.Unknown || after.Reason == tiered.Unknown || p.unlimited(a) || full {
		return
	}
	p.judge(&after)
	// A standing share pays first, and may owe then what Redis still has.
	if most := max(before.Remaining-n, 0); after.Remaining > most && p.Policies[a.which].Standing == 0 {
		p.blame("charge", fmt.Sprintf("if v = %s; v.Remaining > %d {\n\tt.Error(v)\n}", p.text("PeekN", a, 0), most),
			"%d remained, %d were charged, and %d remain", before.Remaining, n, after.Remaining)
	}
}

// look peeks, and then asks.
func (p *process) look(x *Step, a place) {
	alone, judge := p.alone(a), "peek"
	if p.isDown() {
		judge = "outage"
	} else if !p.settled(a) || time.Since(p.at(a).gave) < 100*ms { // what goes back may be under way
		alone = false
	}
	v := p.peek(a, x.N)
	p.code.add("synctest.Wait()")
	p.quiesce() // what it had Redis told
	took := time.Now()
	d := p.ask(a, x.N)
	if !alone || p.store.hangs.Load() || time.Since(took) > 0 {
		return
	}
	want := v
	want.Tier, want.LimitNumber = d.Tier, d.LimitNumber
	if v.Allowed && v.Burst < math.MaxInt64 && v.Reason != tiered.Shadowed {
		want.ResetAfter = d.ResetAfter
		full := v.Remaining == v.Burst && d.Remaining == d.Burst // the larger limit of another process governs
		if v.Reason == tiered.Granted && !full {
			want.Remaining = max(want.Remaining-x.N, 0) // a charge that is still to be told may leave less
		}
		if v.Reason == tiered.Fallback { // it takes from the fallback, and nothing from what Redis was last seen to have
			want.Remaining = min(max(d.Remaining, want.Remaining-x.N), want.Remaining)
		}
	}
	// A standing share does not always look up the bucket of its key: see local.Cache.Lookup. Then
	// it may be full, for all it knows.
	if p.Policies[a.which].Standing > 0 && d.Tier == tiered.Local {
		want.Remaining, want.ResetAfter = d.Remaining, d.ResetAfter
	}
	if want.ResetAfter-d.ResetAfter == -time.Microsecond { // two calls of one instant have two in a log
		want.ResetAfter = d.ResetAfter
	}
	if want != d {
		p.blame(judge, "t.Errorf(\"Peek says %+v\\nAllow says %+v\", v, d)", "Peek says %+v\nAllow says %+v", v, d)
	}
}

// each compares PeekEach with Peek.
func (p *process) each(_ *Step, a place) {
	l := p.limiters[a.which]
	var all []tiered.Decision
	var err error
	v := p.peek(a, 1)
	p.quiesce()
	begin := time.Now()
	p.call(p.Budget, "every, _ = "+p.text("PeekEach", a), func() { all, err = l.PeekEach(ctx, a.key) })
	if err != nil {
		if !p.isDown() && p.settled(a) {
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
	if p.isDown() || !p.settled(a) || time.Since(begin) > 0 || v.Reason == tiered.Shadowed {
		return
	}
	if v.Tier != tiered.Remote { // what a process knows may be older
		if v.Reason == tiered.Limited && tightest.Allowed {
			p.blame("each", differs, "Peek says %+v\nPeekEach says %+v", v, all)
		}
		return
	}
	if p.Policies[a.which].Standing > 0 && len(all) > 1 {
		tightest.Remaining = v.Remaining // the fallback of one limit may be full, and that of another empty
	}
	if later := tightest.RetryAfter - v.RetryAfter; tightest.Allowed != v.Allowed || tightest.Remaining != v.Remaining || later.Abs() > time.Microsecond {
		p.blame("each", differs, "Peek says %+v\nPeekEach says %+v", v, all)
	}
}

const differs = "t.Errorf(\"Peek says %+v\\nPeekEach says %+v\", v, every)"

// counts are the figures of a policy in a process, as its callers saw them. Spent has all that was
// granted or charged.
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

// admitted counts a request that was admitted, nobody says how. A request over parts of n tokens
// counts only them.
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
		r.OwnLimits = false // it is no count
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
