package local

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// dryLease is the lease id of a dry run of a direct take, which has none: no process has it.
const dryLease = "?"

// DryRun is the call that Redis would be asked for n tokens by now, as a dry run: Redis says what it would answer, and
// nothing changes. It reports false if Redis would not be asked, because calls have failed of late.
func (b *Bucket) DryRun(now time.Duration, n int64, c Conditions) (call Call, asks bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lease.backsOff(now) {
		return Call{}, false
	}
	b.lease.dropEnded(now) // as before any call
	b.account(now)
	b.dropDebts(now, c)
	p := b.Policy()
	s := b.size(now, c.RoundTrip)
	timeout := p.timeout(c.Timeout)
	call = Call{Call: p.Call, Policy: p, sent: now, period: s.period, ttl: p.ttl(s.period, timeout)}
	call.Want, call.Min, call.Lease = n, n, c.Lease
	call.Bucket, call.Phase, call.Fleet, call.TTL = c.Bucket, c.Phase, max(c.FleetHere, 1), call.ttl.Microseconds()
	if call.Epoch = b.view.epoch; c.Clock {
		call.Deadline = c.Server + timeout.Microseconds()
	}
	hold := b.lease.live(now)
	if p.Call.Algorithm == lua.SlidingLog {
		call.Direct = true
		b.settleDry(&call)
	} else {
		call.Direct, call.Unleased = b.takes(now, c, request{n: b.pending.count() + 1}, !p.NoLease && s.pays(b.leasing), hold)
		if call.leases() {
			call.Min = max(n-hold, 1)
			call.Want = call.Min
		} else {
			call.To = 1
		}
		if call.Direct {
			call.Lease = dryLease
			return call, true
		}
		call.Hold = hold
		call.Ret, call.Refund = b.lease.goingBack()
		if call.Ack = c.Seq; b.lease != nil && b.lease.ack != unknownAck {
			call.Ack = b.lease.ack
		}
		if w := b.windows(); w != nil && call.Refund > 0 && w.refund != nil {
			call.At = w.refund.at
		}
	}
	b.oweDry(&call, now, c)
	return call, true
}

// Only is a dry run by one of the limits of a key, from 0.
func (c Call) Only(i int) Call {
	l, p := c.Limits()[i], *c.Policy
	c.Cap, c.Tokens, c.Period, c.Span, c.Also = l.Cap, l.Tokens, l.Period, l.Span, nil
	p.Cap = l.Cap
	c.Policy = &p
	return c
}

// settleDry adds to a dry run of a log what the next call settles.
func (b *Bucket) settleDry(call *Call) {
	if w := b.windows(); len(w.settle) > 0 {
		s := w.settle[0]
		call.At, call.To, call.Epoch = s.at, s.cost, s.epoch
	}
}

// oweDry adds to a dry run the debt that the next call reports.
func (b *Bucket) oweDry(call *Call, now time.Duration, c Conditions) {
	if b.lease == nil || !c.Clock {
		return
	}
	if b.freezes() {
		if d := b.windows().debts.next(); d != nil {
			call.Debt, call.certain, call.Since = d.admitted, d.certain, d.sinceAt(now, c.Server)
		}
	} else {
		call.Debt, call.certain = b.lease.fallback.debt.report()
		call.Since = c.Server
	}
	call.Owed, call.Seen = min(call.Debt, call.certain+b.share.missing(now)), b.view.overflow
}

// Foreseen is the verdict on n tokens by Redis' answer to a dry run. Left is what remains before they are taken.
func (b *Bucket) Foreseen(now time.Duration, n int64, c Call, r lua.Reply) Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, held := c.Policy, int64(0)
	if !c.Direct {
		held = b.lease.live(now)
	}
	left := held + r.Level
	if b.lease != nil { // what a direct take does not report
		left -= max(b.lease.fallback.debt.certain-c.certain, 0)
	}
	v := Verdict{Outcome: Admitted, Left: min(max(left, 0), p.Cap)}
	if r.Grant > 0 {
		return v
	}
	var d denial
	if old := b.denied.Load(); old != nil {
		d = *old
	}
	if c.leases() {
		n -= held
	}
	d.refused(p, c.Min, r.Level, c.sent, now, micros(r.Retry), r.Flags&lua.OtherTerms != 0)
	if c.leases() && b.holdsOff(r) && d.leaves(c, r) {
		d.holdOff = max(d.holdOff, c.sent+p.between(0.75, 1.25, p.holdOff(c.period)))
	}
	v.Outcome = Refused
	v.Retry, _ = d.refuses(now, n)
	return v
}

// Foresee is Take and Refuse without taking or counting anything. Left is what remains before n tokens are taken. It
// reports false if Redis has to be asked: see [Bucket.DryRun].
func (h *hot) Foresee(now time.Duration, n int64) (Verdict, bool) {
	if held := h.held(now); held >= n {
		return Verdict{Outcome: Admitted, Left: h.remaining(held)}, true
	}
	return h.Refuse(now, n)
}
