package local

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Begin says what to send now that the queue's turn has come. The call that it returns must end
// with Accept, Late or Fail. A call of Seq 0 means that nothing is to be sent any more; only then
// there is an Effect.
func (b *Bucket) Begin(now time.Duration, c Conditions) (Call, Effect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hot.queued = false
	if b.hot.view.probe == probeLater { // this call does the same
		b.hot.view.probe = probeNot
	}
	if b.hot.life == closed || b.pending.calling() {
		return Call{}, Effect{}
	}
	c.ahead = b.hot.denied.windows().ahead(c.Server)
	b.hot.lease.dropEnded(now)
	b.setFleet(now, c.Fleet)
	b.account(now)
	b.hot.lease.forget(b.Policy(), b.hot.denied.windows().outdated(b.Policy(), now, c))
	b.refuseLarge(now, c)
	m := newComposer(b, now, c, false)
	ok := m.next()
	if b.hot.lease != nil {
		b.hot.lease.maxCost.fade()
	}
	if !ok { // there is nothing to send
		again := now + b.Policy().retryPause(c.RoundTrip)
		b.pending.failCredits()      // without the node's clock there is no credit
		b.hot.lease.renewFrom(again) // so that not every decision looks again
		b.hot.forgive()
		b.pending.stopRepeating()
		b.deliver()
		effect := b.next(now)
		if effect.Send { // it cannot be sent yet, because the node's clock is unknown, and would spin
			b.hot.queued, effect = false, Effect{Check: again}
		}
		return Call{}, effect
	}
	m.state()
	b.hot.denied.windows().sent(now, &m.call)
	b.pending = b.pending.orNew()
	b.pending.call = m.call
	b.hot.lease.callSent()
	return m.call, Effect{}
}

// refuseLarge refuses callers that want more than Redis has of the window until that ends. Shares
// have the rest of it, though they may be out of use now.
func (b *Bucket) refuseLarge(now time.Duration, c Conditions) {
	part, ok := c.part(b.Policy())
	if !ok {
		return
	}
	refused := false
	for w := range b.pending.waiting() {
		if w.cost > part.tokens {
			b.pending.decide(w, b.hot.refuse(w, Local, now, part.left))
			refused = true
		}
	}
	if refused {
		b.deliver()
	}
}

// Report asks for a call that tells Redis what is spent of the lease and what is owed. Until then
// the spent tokens leave no room for the refill, and the refill does not pay the debt. It reports
// false if there is nothing to tell.
func (b *Bucket) Report(now time.Duration) (e Effect, news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hot.life != inUse || !b.hot.lease.out(now) && !b.hot.lease.owes() {
		return Effect{}, false
	}
	if b.hot.upkeep == nothing {
		b.hot.upkeep = reporting
	}
	return b.sendAfterBackOff(now), true
}

// dryLease is the lease id of a dry run of a direct take, which has none: no process has it.
const dryLease = "?"

// DryRun is the call that Redis would be asked for n tokens by now, as a dry run: Redis says what
// it would answer, and nothing changes. It reports false if Redis would not be asked, because calls
// have just failed. c.Seq is that of the last call of the process.
func (b *Bucket) DryRun(now time.Duration, n int64, c Conditions) (call Call, asks bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.backsOff(now, c.Well) {
		return Call{}, false
	}
	c.ahead = b.hot.denied.windows().ahead(c.Server)
	b.hot.lease.dropEnded(now) // as before any call
	b.account(now)
	b.hot.lease.forget(b.Policy(), b.hot.denied.windows().outdated(b.Policy(), now, c))
	m := newComposer(b, now, c, true)
	if part, ok := c.part(b.Policy()); ok && n > part.tokens {
		m.call.edge, n = part.left, part.tokens
	}
	return m.dryRun(n), true
}

// Tell notes the bucket's time that the answer to a late dry run tells, in µs; 0 if it tells none.
func (b *Bucket) Tell(stamp int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hot.denied.windows().tells(stamp)
}

// Foreseen is the outcome on n tokens by Redis' answer to a dry run. Left is what remains before
// they are taken.
func (b *Bucket) Foreseen(now time.Duration, n int64, c Call, r lua.Reply) Outcome {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, held := c.Policy, int64(0)
	if !c.Direct {
		held = b.hot.lease.live(now)
	}
	left := held + r.Level - max(b.hot.lease.orEmpty().outage.debt.certain-c.certain, 0) // what a direct take does not report
	o := Decided(p, Granted, Remote, min(max(left, 0), p.Most()), 0)
	switch {
	case c.edge > 0:
		o.Reason, o.Retry = Limited, c.edge
		return o
	case r.Grant > 0:
		return o
	}
	d := b.hot.denied.copy()
	if c.leases() {
		n -= held
	}
	byOther := r.Flags&lua.OtherTerms != 0
	d.refused(p, c.Min, r.Level, c.sent, now, micros(r.Retry), byOther)
	if c.leases() && p.holdsOff(r) && d.leaves(c, r) {
		d.holdOff = max(d.holdOff, p.holdOffEnd(c))
	}
	o.Reason = Limited
	if held == 0 {
		o.Left = min(left, o.Left)
	}
	o.Retry, _ = d.refuses(now, n)
	return o
}

// composer makes one call of a bucket: what the call is for, and all that it states.
//
// A dry run is composed alike, because Redis is asked what it would answer. It leaves the bucket as
// it is.
type composer struct {
	b *Bucket
	Conditions
	now     time.Duration
	policy  *Policy
	size    sizing
	leasing bool // demand pays for a lease
	far     bool // answers come when those who asked have left
	dry     bool
	until   time.Duration // until then the node should execute the call: Deadline, by this process' clock
	call    Call
}

// newComposer returns a composer of a call that is sent now.
func newComposer(b *Bucket, now time.Duration, c Conditions, dry bool) composer {
	p, s := b.Policy(), b.size(now, c.RoundTrip)
	timeout := p.timeout(c.Timeout)
	far := c.isFar(b)
	pays := s.pays(b.hot.leasing != direct) || far && s.paysFar(&b.demand)
	return composer{
		b: b, Conditions: c, now: now, policy: p, size: s, dry: dry,
		leasing: pays && !p.NoLease && p.Call.Algorithm.Has(lua.Leased), far: far, until: now + timeout,
		call: Call{
			Call: p.Call, Policy: p, sent: now, at: c.at(), trip: c.RoundTrip, first: !c.Clock,
			ttl: p.ttl(s.period, timeout), period: s.period,
		},
	}
}

// isFar reports whether answers come when the callers of b have left: after Budget, or after the
// time of the caller that waits least. While no caller waits, it is as for the last caller, unless
// the node has come closer.
func (c *Conditions) isFar(b *Bucket) bool {
	p := b.Policy()
	if c.Slow > p.Budget {
		return true
	}
	far, waits := false, c.waits(p)
	for w := range b.pending.waiting() {
		far = far || w.hurried(waits)
	}
	return far || b.pending.count() == 0 && 2*c.RoundTrip > b.hot.leasing.trip() && b.hot.leasing.trip() > 0
}

// next chooses what the next call is for: a credit, those who wait, what is due, or a renewal. It
// reports false if nothing is to be sent. What else the call states, state adds.
func (c *composer) next() bool {
	b := c.b
	switch {
	case c.policy.Unset:
		return false
	case c.policy.Call.Algorithm.Has(lua.Entries):
		b.hot.leasing = direct
		return c.log()
	}
	switch b.hot.leasing = direct; {
	case c.leasing && c.far:
		b.hot.leasing = leasedFar(c.RoundTrip)
	case c.leasing:
		b.hot.leasing = leased
	}
	c.call.Hold = b.hot.lease.live(c.now)
	if c.Clock && b.pending.crediting() > 0 {
		c.credit()
		return true
	}
	if r := c.requested(); r.n > 0 {
		c.request(r)
		return true
	}
	if !c.Clock { // without a deadline there is no lease and no refund, but a peek teaches the clock
		ok := b.hot.view.takeProbe()
		c.call.Hold, c.call.Direct = 0, ok
		return ok
	}
	return c.unasked()
}

// dryRun makes the call for a request of n tokens that waits beside the others. Seq is that of the
// last call.
func (c *composer) dryRun(n int64) Call {
	c.Seq++
	c.request(request{first: n, cost: n, n: c.b.pending.count() + 1, last: c.until})
	if c.b.pending.calling() { // what goes back with that call counts once
		under := &c.b.pending.call
		c.call.Refund = max(c.call.Refund-(under.Refund-under.Given), 0)
	}
	log := c.policy.Call.Algorithm.Has(lua.Entries)
	if log {
		c.settle(true)
	}
	c.state()
	switch {
	case log:
		c.call.Lease = c.Lease
	case c.call.Direct:
		c.call.Lease, c.call.To = dryLease, 1
	}
	c.call.Seq = 0
	return c.call
}

// fillsAny is a credit that fills any token bucket, however far below zero it is. That is at most
// the largest debt, a second's refill and what the call charges besides. The limit may be a larger
// one that another process has.
const fillsAny = 3*lua.MostTokens + 1 + maxDebt

// credit makes a call that gives the tokens of all credits that wait, besides what goes back.
func (c *composer) credit() {
	call, b := &c.call, c.b
	call.credits = b.pending.crediting()
	var refund int64
	call.Ret, refund = b.hot.lease.goingBack()
	switch n := b.pending.credited(); {
	case n != Fill:
		call.Given, call.Refund = n, n+refund
	case c.policy.Call.Algorithm.Has(lua.OneLevel):
		call.Given, call.Refund = fillsAny, fillsAny
	default:
		call.Reset = c.Server
	}
}

// requested is what those who wait ask of the call. An answer takes a round trip, or half of the
// Budget if that is less.
func (c *composer) requested() request {
	return c.b.pending.request(c.now, min(c.RoundTrip, c.policy.Budget/2), c.waits(c.policy), c.policy.Cap)
}

// request makes a call for those who wait: a direct take, or a lease that serves them too.
func (c *composer) request(r request) {
	call, b, p := &c.call, c.b, c.policy
	hold := b.hot.lease.live(c.now)
	call.forWaiters = r.allWait
	call.Direct, call.Unleased = c.takes(r, hold)
	if call.Direct {
		c.until, call.Hold = r.last, 0
	} else {
		call.Hold = hold
		call.Ret, call.Refund = b.hot.lease.goingBack()
	}
	if !call.leases() {
		call.Min, call.Want = r.first, r.cost
		if !c.dry {
			call.Want = b.pending.addMore(r.cost, p)
		}
		return
	}
	call.Min = max(r.first-hold, 1) // what is held keeps its room: asking for all of first could be refused for ever
	call.Want = max(call.Min, min(r.cost+r.more-hold, p.quarter()))
	if c.leasing && !c.dry {
		call.Want = min(p.Cap, c.size.want(hold, r.cost+r.more, call.Min))
	}
}

// takes reports how the call gets tokens for callers that wait: by a direct take, or without a
// lease by a call that also settles. If neither, they come with a lease. hold is what is held.
//
// If the callers will be gone when the answer comes, the tokens come with a lease if possible: it
// keeps them for the next callers.
func (c *composer) takes(r request, hold int64) (direct, unleased bool) {
	p, l, single := c.policy, c.b.hot.lease, r.n == 1
	if !p.Call.Algorithm.Has(lua.Leased) {
		return true, false
	}
	if r.hurried && c.Clock && !p.NoLease {
		return false, false
	}
	settles, out := l.owes(), l.out(c.now) // only a call with a lease id can settle
	held := hold > 0 && !p.Unleased        // by a lease of before SetPolicy, if nothing is leased now: it is used too
	if !c.Clock || p.NoLease && !held && (!settles || p.ShortWindow) || single && !c.leasing && !settles && !out {
		return true, false
	}
	// What is leased for a single request keeps its room until the process reports that it is
	// spent.
	return false, p.Unleased || !held && !out && (p.NoLease || single && !c.leasing)
}

// unasked makes a call that nobody waits for: what is due, a probe, news for Redis, or a renewal.
// It reports false if there is none to make.
func (c *composer) unasked() bool {
	call, b, p, l := &c.call, c.b, c.policy, c.b.hot.lease
	hold, probe := call.Hold, b.hot.view.takeProbe()
	owes := l.owes() || l.out(c.now)
	// A lease that was found idle does not go back if it was used since.
	returns := b.hot.retired() || b.hot.upkeep == returning && b.spent() == l.usedSpent
	extends, reports := b.hot.upkeep == extending && hold > 0, b.hot.upkeep == reporting && owes
	b.hot.upkeep = nothing
	low := l.orEmpty().pot.low.Load()
	switch {
	case returns && owes:
		l.giveBack()
		call.Hold, call.returning = 0, true
		call.Ret, call.Refund = l.goingBack()
	case extends:
		if c.far && c.leasing && hold <= low { // the next answer comes too late to ask only then
			call.Min, call.Want = 1, min(p.Cap, c.size.want(hold, 0, 1))
		}
	case probe: // not a peek, which writes nothing: a replica and a full server would answer that
		call.Ret, call.Refund = l.goingBack()
		if c.leasing {
			call.Min, call.Want = 1, min(p.Cap, c.size.want(hold, 0, 1))
		}
	case l.hasNews(), reports:
		call.Ret, call.Refund = l.goingBack()
	case c.leasing && !returns && (l == nil || hold <= low):
		call.Min, call.Want = 1, min(p.Cap, c.size.want(hold, 0, 1))
	default:
		return false
	}
	return true
}

// log makes a call of a log: a direct take, or none, with what there is to settle.
func (c *composer) log() (ok bool) {
	call, b := &c.call, c.b
	call.Direct = true
	if c.Clock && b.pending.crediting() > 0 {
		call.Reset, call.credits, ok = c.Server, b.pending.crediting(), true
	}
	if r := c.requested(); r.n > 0 {
		c.request(r)
		ok = true
	}
	ok = c.settle(ok)
	probe := b.hot.view.takeProbe()
	b.hot.upkeep = nothing
	if c.Clock && (probe || call.Debt > 0 || call.Reset > 0) {
		call.Lease = c.Lease
	}
	return ok || probe
}

// settle adds to a call of a log an entry that cost less, and what is owed. It reports whether
// there is a call to make, made says that there is one anyway.
func (c *composer) settle(made bool) bool {
	call, b := &c.call, c.b
	if w := b.hot.denied.windows(); w != nil && len(w.settle) > 0 { // nil if the bucket was closed while a dry run was queued
		s := w.settle[0]
		call.settles, call.To, call.settledNow, made = s, s.cost, s.owed, true
	}
	if !c.Clock || b.hot.lease == nil {
		return made
	}
	if d := &b.hot.lease.outage.debt; d.certain > 0 || d.admitted > 0 && (made || b.hot.retired() || b.hot.view.probe == probeNow || b.hot.upkeep == reporting) {
		c.owe()
		return true
	}
	return made
}

// state adds what does not depend on what the call is for: from whom, to which bucket, by when, and
// what is owed.
func (c *composer) state() {
	call, b := &c.call, c.b
	call.Seq, call.Bucket, call.Fleet = c.Seq, c.Bucket, c.Fleet
	c.intoWindow(c.policy, &call.Call)
	if call.TTL = call.ttl.Microseconds(); c.Clock {
		call.Deadline = c.Server + (c.until - c.now).Microseconds()
	}
	if call.Unleased {
		call.To = 1
	}
	call.Epoch = b.hot.view.epoch
	if s := call.settles; s != nil {
		call.At, call.Epoch = s.at, s.epoch
	} else if s := b.hot.denied.windows().refunds(call.Refund, c.dry); s != nil {
		call.At = s.at
		if b.hot.freezes() { // else the epoch is that of Seen, and what comes back is credited whenever it was taken
			call.Epoch = s.epoch
		}
	}
	if !call.Direct {
		c.record()
	}
	if call.named() {
		call.Seen = b.hot.view.overflow
	}
}

// record adds to a call that is not direct what a lease's record needs to know: which reply was
// accepted last, and what is owed.
func (c *composer) record() {
	call, b, l := &c.call, c.b, c.b.hot.lease
	call.Lease, call.Ack = c.Lease, c.Seq-1 // whatever an earlier state of this key was granted counts as spent
	if l != nil && l.ack != unknownAck {
		call.Ack = l.ack
	}
	c.owe()
	call.Owed = min(call.Debt, call.certain+b.fallback.missing(c.now))
	if c.dry {
		return
	}
	l = b.needLease()
	l.ack = call.Ack
	if call.Hold > 0 {
		// The record ends one ttl after this call is executed, even if its reply is lost and an
		// earlier, longer ttl was accepted. From now on the pot lives no longer than that.
		l.pot.endBy(c.now + usable(call.ttl))
	}
	// The call may be executed until its deadline, and its record then lives for one ttl. A call
	// that only gives back puts nothing out. If it prolonged this, a return that always fails would
	// be repeated for ever.
	if call.Hold > 0 || call.Want > 0 && call.leases() {
		l.outUntil = max(l.outUntil, c.until+call.ttl)
	}
}

// owe adds the debt that the call reports, and when it was admitted by the node's clock.
func (c *composer) owe() {
	call, b := &c.call, c.b
	if b.hot.freezes() {
		call.Debt, call.certain, call.Since = b.hot.denied.windows().debts.report(c.now, c.Server, c.dry)
		return
	}
	call.Debt, call.certain = b.hot.lease.orEmpty().outage.debt.report()
	call.Since = c.Server
}
