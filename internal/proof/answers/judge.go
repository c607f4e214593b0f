package answers

import (
	"context"
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
	if d.RetryAfter < 0 || d.ResetAfter < 0 || d.RetryAfter > 0 && d.Reason != tiered.Limited && d.Reason != tiered.FallbackSpent {
		w.blame("range", "t.Errorf(\"%+v\", d)", "%v: retry after %v, reset after %v", d.Reason, d.RetryAfter, d.ResetAfter)
	}
}

// settled reports whether a policy has been the same everywhere for a while, and the store there, and nobody waits.
func (w *player) settled(which int, key string) bool {
	return !w.isDown() && time.Now().After(w.rough[which]) && w.waits(name(which, key)) == 0
}

// waits returns how many callers wait for a key of a policy, or for any if that is "".
func (w *player) waits(name string) (n int) {
	for of, callers := range w.waiting {
		if name == "" || of == name {
			n += callers
		}
	}
	return n
}

// alone reports whether no other process holds tokens of a key.
func (p *process) alone(which int, key string) bool {
	const past = 10 * second // longer than a lease
	for _, q := range p.slots {
		if q == p {
			continue
		}
		s := q.group.Stats()
		if s.Policies[p.Policies[which].Name].Leases.Held > 0 || s.Leaving > 0 || time.Since(q.touched[name(which, key)]) < past ||
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
			if longest = max(longest, tokenTime(l)); p.Standing != tiered.StandingOff {
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
	byFallback := d.Reason == tiered.FallbackSpent && p.isDown() && !p.store.hangs.Load() && p.waits(name(which, key)) == 0
	if d.Allowed || told <= 0 || told > mostRest || d.Reason != tiered.Limited && !byFallback {
		return
	}
	if byFallback {
		if e := comes(told); !e.Allowed {
			p.blame("fallback", comesBack, "told %v by %v, came back then, and is %v: told %v", told, d.Tier, e.Reason, e.RetryAfter)
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
	} else if !p.settled(which, key) || time.Since(p.gave[name(which, key)]) < 100*ms { // what goes back may be under way
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
	// A standing share does not always look up the bucket of its key: see local.Cache.Lookup. Then it may be full, for all it knows.
	if p.Policies[which].Standing != tiered.StandingOff && d.Tier == tiered.Local {
		want.Remaining, want.ResetAfter = d.Remaining, d.ResetAfter
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
		tightest.Remaining = v.Remaining // the fallback of one limit may be full, and that of another empty
	}
	if later := tightest.RetryAfter - v.RetryAfter; tightest.Allowed != v.Allowed || tightest.Remaining != v.Remaining || later.Abs() > time.Microsecond {
		p.blame("each", fmt.Sprintf("v := p[%d][%d].Peek(ctx, %q)\neach, _ := p[%[1]d][%[2]d].PeekEach(ctx, %[3]q)\n"+
			"t.Errorf(\"Peek says %%+v\\nPeekEach says %%+v\", v, each)", p.slot, which, key), "Peek says %+v\nPeekEach says %+v", v, all)
	}
}
