package answers

import (
	"context"
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

// settled reports whether a policy has been the same everywhere for a while, and the store there, and nobody waits.
func (w *player) settled(which int, key string) bool {
	return !w.isDown() && time.Now().After(w.rough[which]) && w.waits(name(which, key)) == 0
}

// steady reports whether the store has worked for a while, and nobody waits. A limit that has changed is told as it counts.
func (w *player) steady(which int, key string) bool {
	return !w.isDown() && time.Now().After(w.outage) && w.waits(name(which, key)) == 0
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
	for _, q := range w.slots {
		all := limits(q.limiters[which].Policy())
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
	}
	return most + max(4*p.Lease.Period, second) + second
}

// back asks until it is refused, and comes back when that says.
func (p *process) back(x Step, which int, key string) {
	var d tiered.Decision
	for range 40 {
		if d = p.askBy(x, which, key, x.N); !d.Allowed || d.Burst == math.MaxInt64 {
			break
		}
	}
	p.comeBack(d, 0, x, which, key)
}

// crowd asks for several costs while the store is slow, one after the other, and comes back for one that is refused.
func (p *process) crowd(x Step, which int, key string) {
	all, at := make([]tiered.Decision, len(x.Costs)), make([]time.Duration, len(x.Costs))
	p.store.slow.Store(true)
	begin := time.Now()
	var crowd sync.WaitGroup
	for i, n := range x.Costs {
		crowd.Go(func() { all[i], at[i] = p.limiters[which].AllowN(context.Background(), key, n), time.Since(begin) })
		synctest.Wait()
	}
	crowd.Wait()
	took := time.Since(begin)
	defer func() { // who comes back has the same way
		p.store.slow.Store(false)
		p.slowed = time.Now().Add(10 * second)
	}()
	p.late(took, p.Budget)
	p.touched[name(which, key)] = time.Now()
	last := time.Duration(-1) // when the last was admitted: who was refused until then does not know of it
	for i := range all {
		if p.decision(&all[i], which, x.Costs[i]); all[i].Allowed {
			last = max(last, at[i])
		}
	}
	for i := range all {
		i = (i + x.Pick) % len(all)
		if d := all[i]; d.Reason == tiered.Limited && at[i] > last {
			p.slowed = time.Now().Add(second)
			p.comeBack(d, took, x, which, key)
			return
		}
	}
}

// comeBack comes back after a refusal when that says. It may have been a little sooner that it was told.
func (p *process) comeBack(d tiered.Decision, sooner time.Duration, x Step, which int, key string) {
	call := fmt.Sprintf("%s.Allow(ctx)", useCode(x, fmt.Sprintf("p[%d][%d]", p.slot, which), key, d.Cost))
	comes := func(after time.Duration) (e tiered.Decision) {
		p.sleep(after)
		e = p.askBy(x, which, key, d.Cost)
		p.returns[p.at] += fmt.Sprintf("\nsleep(%s)\nd = %s", dur(after), call)
		return e
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
	if !p.steady(which, key) {
		return
	}
	alone := p.alone(which, key)
	if time.Now().Before(p.slowed) { // it knows when its calls were sent, and not when they were executed
		told, sooner = told+slowness, sooner+3*slowness
	}
	early := told - sooner - grain(policy, p.Rules[which][key])
	if alone && p.settled(which, key) && x.Pick%3 == 0 && early > 0 && time.Since(p.gave[name(which, key)]) > 2*second {
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
	bound := p.longest(which, key)
	begin := time.Now()
	for tries := 1; ; tries++ {
		e := comes(told)
		switch {
		case e.Allowed || !p.steady(which, key):
			return
		case alone:
			p.blame("retry", comesBack, "told %v by %v, came back then, and is %v: told %v by %v, %d remain",
				told, d.Tier, e.Reason, e.RetryAfter, e.Tier, e.Remaining)
			return
		case !p.settled(which, key):
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
func (p *process) scout(which int, key string, n int64) {
	peek := func() (d tiered.Decision) {
		p.timed(p.Budget, func() { d = p.limiters[which].PeekN(context.Background(), key, n) })
		p.judge(&d)
		return d
	}
	d := peek()
	if d.Reason != tiered.Limited || d.RetryAfter > mostRest || !p.steady(which, key) || !p.alone(which, key) {
		return
	}
	if time.Now().Before(p.slowed) {
		d.RetryAfter += slowness
	}
	p.sleep(d.RetryAfter)
	p.returns[p.at] = fmt.Sprintf("\nsleep(%s)\nd = p[%d][%d].PeekN(ctx, %q, %d)", dur(d.RetryAfter), p.slot, which, key, n)
	if e := peek(); !e.Allowed && p.steady(which, key) && p.alone(which, key) {
		p.blame("retry", "if !d.Allowed {\n\tt.Errorf(\"looked when it was told, and is told %v\", d.RetryAfter)\n}",
			"told %v by %v, looked then, and is %v: told %v by %v", d.RetryAfter, d.Tier, e.Reason, e.RetryAfter, e.Tier)
	}
}

// charged judges what a process knows of a key after a charge of n tokens that it heard of at once. before is what it knew.
func (p *process) charged(before tiered.Decision, which int, key string, n int64) {
	after := p.limiters[which].PeekN(context.Background(), key, 0)
	full := before.Remaining == before.Burst && p.Policies[which].Lease.Size != tiered.NoLease // there may be more, with a lease
	if before.Reason == tiered.Unknown || after.Reason == tiered.Unknown || p.unlimited(which, key) || full {
		return
	}
	p.judge(&after)
	// A standing share pays first, and may owe then what Redis still has.
	if most := max(before.Remaining-n, 0); after.Remaining > most && p.Policies[which].Standing == tiered.StandingOff {
		p.blame("charge", fmt.Sprintf("if d = p[%d][%d].PeekN(ctx, %q, 0); d.Remaining > %d {\n\tt.Error(d)\n}", p.slot, which, key, most),
			"%d remained, %d were charged, and %d remain", before.Remaining, n, after.Remaining)
	}
}

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
	p.quiesce() // what it had Redis told
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
			want.Remaining = max(want.Remaining-n, 0) // a charge that is still to be told may leave less
		}
	}
	// A standing share does not always look up the bucket of its key: see local.Cache.Lookup. Then it may be full, for all it knows.
	if p.Policies[which].Standing != tiered.StandingOff && d.Tier == tiered.Local {
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
func (p *process) each(which int, key string) {
	l := p.limiters[which]
	var all []tiered.Decision
	var err error
	v := l.Peek(context.Background(), key)
	p.judge(&v)
	p.quiesce()
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
	if p.isDown() || !p.settled(which, key) || time.Since(begin) > 0 || v.Reason == tiered.Shadowed {
		return
	}
	if v.Tier != tiered.Remote { // what a process knows may be older
		if v.Reason == tiered.Limited && tightest.Allowed {
			p.blame("each", fmt.Sprintf("v := p[%d][%d].Peek(ctx, %q)\neach, _ := p[%[1]d][%[2]d].PeekEach(ctx, %[3]q)\n"+
				"t.Errorf(\"Peek says %%+v\\nPeekEach says %%+v\", v, each)", p.slot, which, key), "Peek says %+v\nPeekEach says %+v", v, all)
		}
		return
	}
	if p.Policies[which].Standing != tiered.StandingOff && len(all) > 1 {
		tightest.Remaining = v.Remaining // the fallback of one limit may be full, and that of another empty
	}
	if later := tightest.RetryAfter - v.RetryAfter; tightest.Allowed != v.Allowed || tightest.Remaining != v.Remaining || later.Abs() > time.Microsecond {
		p.blame("each", fmt.Sprintf("v := p[%d][%d].Peek(ctx, %q)\neach, _ := p[%[1]d][%[2]d].PeekEach(ctx, %[3]q)\n"+
			"t.Errorf(\"Peek says %%+v\\nPeekEach says %%+v\", v, each)", p.slot, which, key), "Peek says %+v\nPeekEach says %+v", v, all)
	}
}
