package adversary

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/invariant"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// refillRule is that of token buckets, one or several: the admissions fit into an ideal bucket of each limit.
type refillRule struct{}

// police shows the admissions to an ideal bucket.
func (w *World) police(l *limit) *ideal.Policer {
	p := ideal.NewPolicer(l.Tokens, time.Duration(l.Period)*time.Microsecond, l.Cap)
	for _, e := range w.admissions.events[l.from:] {
		if e.refunded > 0 {
			p.Refund(int64(e.at), e.refunded)
		}
		if e.tokens > 0 {
			p.Admit(int64(e.at), e.tokens)
		}
	}
	return p
}

// excess is that of all admissions, and that of those which were kept, beyond its price.
func (refillRule) excess(w *World, l *limit) float64 {
	over := w.police(l).Worst().Over
	if len(w.cameBack) > 0 {
		over = max(over, w.policeKept(l).Worst().Over-w.priceOfReturns(l))
	}
	return over
}

// comeback is tokens that were admitted at an event and came back to the bucket at another.
type comeback struct {
	from, to int // events
	n        int64
}

// policeKept shows an ideal bucket what was admitted and kept, and what was given, each at its own instant.
func (w *World) policeKept(l *limit) *ideal.Policer {
	kept, given := make([]int64, len(w.admissions.events)), make([]int64, len(w.admissions.events))
	for i, e := range w.admissions.events {
		kept[i], given[i] = e.tokens, e.refunded
	}
	for _, c := range w.cameBack {
		kept[c.from] -= c.n
		given[c.to] -= c.n
	}
	p := ideal.NewPolicer(l.Tokens, time.Duration(l.Period)*time.Microsecond, l.Cap)
	for i := l.from; i < len(kept); i++ {
		at := int64(w.admissions.events[i].at)
		if given[i] > 0 {
			p.Refund(at, given[i])
		}
		if kept[i] > 0 {
			p.Admit(at, kept[i])
		}
	}
	return p
}

// priceOfReturns returns by how much what was kept may exceed a limit. While tokens are out that come back later, the
// bucket refills into their room: by the rate for as long as any are out, and by what is given meanwhile, but never by
// more than are out.
func (w *World) priceOfReturns(l *limit) (price float64) {
	events := w.admissions.events
	out, given := make([]int64, len(events)), make([]int64, len(events)) // at an event: more or less out, and given
	for i, e := range events {
		given[i] = e.refunded
	}
	for _, c := range w.cameBack {
		out[c.from] += c.n
		out[c.to] -= c.n
		given[c.to] -= c.n
	}
	now, most, gifts, since := int64(0), int64(0), int64(0), time.Duration(0)
	for i, e := range events {
		if now == 0 {
			most, gifts, since = 0, 0, e.at
		}
		now, gifts = now+out[i], gifts+given[i]
		most = max(most, now)
		refilled := (e.at - since).Seconds() * float64(l.Tokens) * 1e6 / float64(l.Period)
		price = max(price, min(float64(most), refilled+float64(gifts)))
	}
	return price
}

func (refillRule) counted(*World, int64) {}

// refund counts now, as in a central bucket that gets the same refunds and gifts.
func (refillRule) refund(w *World, r *request, _ lua.Flags) {
	sum := r.call.Given
	now := w.newEvent()
	for _, part := range r.refunds {
		sum += part.n
		w.cameBack = append(w.cameBack, comeback{part.event, now, part.n})
	}
	w.admissions.events[now].refunded += sum
}

func (refillRule) reset(w *World, _ *request) {
	most := int64(0)
	for _, l := range w.limits {
		most = max(most, l.Cap)
	}
	w.admissions.events[w.newEvent()].refunded += 4 * most
}

func (refillRule) debtCharged(*World, *request) {}

func (refillRule) executed(w *World, x *invariant.Exchange) {
	if f := x.Check(); f.Broken() {
		w.Failf("%v", f)
	}
}

// digest adds how full ideal buckets would be. While the reply of a direct take that was executed in the past is under
// way, and once tokens came back, it adds every admission.
func (refillRule) digest(w *World, d *digester) {
	past := len(w.cameBack) > 0
	for _, r := range w.replies {
		past = past || r.to.direct
	}
	if past {
		for _, e := range w.admissions.events {
			d.add(uint64(e.at), uint64(e.tokens), uint64(e.refunded))
		}
	}
	for _, c := range w.cameBack {
		d.add(uint64(c.from), uint64(c.to), uint64(c.n))
	}
	for _, l := range w.limits {
		p := w.police(l)
		p.Refund(int64(w.now), 0)
		d.add(math.Float64bits(p.Depth()))
	}
}
