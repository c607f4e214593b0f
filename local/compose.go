package local

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// compose chooses what the next call is for: a reset, those who wait, what is due, or a renewal. It reports false if
// nothing is to be sent.
func (b *Bucket) compose(now time.Duration, c Conditions) (Call, bool) {
	p := b.Policy()
	if p.Unset {
		return Call{}, false
	}
	if p.Call.Algorithm == lua.SlidingLog {
		return b.composeLog(now, c)
	}
	report := b.mustReport()
	if report { // any call reports the limit
		b.view.probe = probeNot
	}
	s := b.size(now, c.RoundTrip)
	b.leasing = !p.NoLease && s.pays(b.leasing)
	timeout := p.timeout(c.Timeout)
	call := Call{Call: p.Call, ttl: p.ttl(s.period, timeout), wanted: now + timeout, period: s.period}
	call.Hold = b.lease.live(now)
	if c.Clock && b.pending.crediting() > 0 {
		b.composeCredit(&call, c.Server)
		return call, true
	}
	if r := b.request(now, c); r.n > 0 {
		b.composeRequest(&call, now, c, r, s)
		return call, true
	}
	if !c.Clock { // without a deadline there is no lease and no refund, but a peek teaches the clock
		ok := b.takeProbe() || report
		call.Hold, call.Direct = 0, ok
		return call, ok
	}
	ok := b.composeUnasked(&call, now, s, report)
	return call, ok
}

// request is what those who wait ask of a call that is sent now. An answer takes a round trip, or half of the Budget if
// that is less. Far from Redis it takes what it typically does, whoever waits.
func (b *Bucket) request(now time.Duration, c Conditions) request {
	p := b.Policy()
	trip := min(c.RoundTrip, p.Budget/2)
	return b.pending.request(now, trip, max(trip, c.Typical), p.Cap)
}

// takeProbe reports whether a probe is wanted, and notes that it is made.
func (b *Bucket) takeProbe() bool {
	wanted := b.view.probe == probeNow
	b.view.probe = probeNot
	return wanted
}

// fillsAny is a credit that lifts any token bucket to its room from wherever it is: that is never further below zero than
// the largest debt and a second's refill. These may be those of a larger limit, by which another process goes.
const fillsAny = 3*lua.MostTokens + 1

// composeCredit makes a call that gives the tokens of all credits that wait, besides what goes back.
func (b *Bucket) composeCredit(call *Call, server int64) {
	p := b.Policy()
	call.credits = b.pending.crediting()
	var refund int64
	call.Ret, refund = b.lease.goingBack()
	switch n := b.pending.credited(); {
	case n != Fill:
		call.Given, call.Refund = n, n+refund
	case p.Call.Algorithm == lua.TokenBucket:
		call.Given, call.Refund = fillsAny, fillsAny
	default:
		call.Reset = server
	}
}

// composeRequest makes a call for those who wait: a direct take, or a lease that serves them too.
func (b *Bucket) composeRequest(call *Call, now time.Duration, c Conditions, r request, s sizing) {
	p, hold := b.Policy(), call.Hold
	call.forWaiters = r.allWait
	call.Direct, call.Unleased = b.takes(now, c, r, b.leasing, hold)
	if call.Direct {
		call.wanted, call.Hold = r.last, 0
	} else {
		call.Ret, call.Refund = b.lease.goingBack()
	}
	if !call.leases() {
		call.Min, call.Want = r.first, b.pending.addMore(r.cost, p)
		return
	}
	call.Min = max(r.first-hold, 1) // what is held keeps its room: asking for all of first could be refused for ever
	call.Want = max(call.Min, min(r.cost+r.more-hold, p.quarter()))
	if b.leasing {
		call.Want = s.want(p, hold, r.cost+r.more, call.Min)
	}
}

// takes reports how a call gets tokens for those who wait: by a direct take, or without a lease by a call that settles
// besides. If neither, they come with a lease. hold is what is held.
//
// If those who wait are gone when the answer is there, the tokens come with a lease if that is possible: it keeps them for
// the next.
func (b *Bucket) takes(now time.Duration, c Conditions, r request, leasing bool, hold int64) (direct, unleased bool) {
	p, clock, single := b.Policy(), c.Clock, r.n == 1
	if r.hurried && clock && !p.NoLease {
		return false, false
	}
	settles, out := b.lease.owes(), b.lease.out(now) // only a call with a lease id can settle
	held := hold > 0 && !p.Unleased                  // by a lease of before SetPolicy, if nothing is leased now: it is used too
	if !clock || p.NoLease && !held && (!settles || p.ShortWindow) || single && !leasing && !settles && !out {
		return true, false
	}
	// What is leased for a single request keeps its room until the process reports that it is spent.
	return false, p.Unleased || !held && !out && (p.NoLease || single && !leasing)
}

// composeUnasked makes a call that nobody waits for: what is due, a probe, news for Redis, or a renewal. It reports
// false if there is none to make.
func (b *Bucket) composeUnasked(call *Call, now time.Duration, s sizing, report bool) bool {
	p, l, hold := b.Policy(), b.lease, call.Hold
	probe := b.takeProbe()
	owes := l.owes() || l.out(now)
	// A lease that was found idle does not go back if it was used since.
	returns := b.retired() || b.upkeep == returning && b.spent() == l.usedSpent
	extends := b.upkeep == extending && hold > 0
	b.upkeep = nothing
	low, leased := l.low()
	switch {
	case returns && owes:
		l.giveBack()
		call.Hold, call.returning = 0, true
		call.Ret, call.Refund = l.goingBack()
	case extends:
	case probe: // not a peek, which writes nothing: a replica and a full server would answer that
		call.Ret, call.Refund = l.goingBack()
		if b.leasing {
			call.Min, call.Want = 1, s.want(p, hold, 0, 1)
		}
	case l.hasNews():
		call.Ret, call.Refund = l.goingBack()
	case report && owes: // it asks for nothing, because a short grant would set a hold-off
	case report: // a peek, which writes if the limit is another one
		call.Hold, call.Direct = 0, true
	case b.leasing && !returns && (!leased || hold <= low):
		call.Min, call.Want = 1, s.want(p, hold, 0, 1)
	default:
		return false
	}
	return true
}

// composeLog is compose for a log. Every call is a direct take, or none, with what there is to settle.
func (b *Bucket) composeLog(now time.Duration, c Conditions) (call Call, ok bool) {
	p, w := b.Policy(), b.windows()
	period := b.size(now, c.RoundTrip).period
	b.leasing = false
	timeout := p.timeout(c.Timeout)
	call = Call{Call: p.Call, Direct: true, ttl: p.ttl(period, timeout), wanted: now + timeout, period: period}
	if c.Clock && b.pending.crediting() > 0 {
		call.Reset, call.credits, ok = c.Server, b.pending.crediting(), true
	}
	if r := b.request(now, c); r.n > 0 {
		call.Min, call.Want, call.wanted, ok = r.first, b.pending.addMore(r.cost, p), r.last, true
		call.forWaiters = r.allWait
	}
	if len(w.settle) > 0 {
		s := w.settle[0]
		call.settles, call.To, call.settledNow, ok = s, s.cost, s.owed, true
	}
	if c.Clock && b.lease != nil {
		d := &b.lease.fallback.debt
		if d.certain > 0 || d.admitted > 0 && (ok || b.retired() || b.view.probe == probeNow) {
			call.Debt, call.certain, call.Since = w.freeze(now, c.Server)
			ok = true
		}
	}
	probe := b.takeProbe()
	b.upkeep = nothing
	if c.Clock && (probe || call.Debt > 0 || call.Reset > 0) {
		call.Lease = c.Lease
	}
	return call, ok || probe
}
