package adversary

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/internal/proof/invariant"
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

func (refillRule) excess(w *World, l *limit) float64 { return w.police(l).Worst().Over }

func (refillRule) counted(*World, int64) {}

// refund counts now, as in a central bucket that gets the same refunds and gifts.
func (refillRule) refund(w *World, r *request, _ lua.Flags) {
	sum := r.call.Given
	for _, part := range r.refunds {
		sum += part.n
	}
	w.admissions.events[w.newEvent()].refunded += sum
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
// way, it adds every admission.
func (refillRule) digest(w *World, d *digester) {
	for _, r := range w.replies {
		if r.to.direct {
			for _, e := range w.admissions.events {
				d.add(uint64(e.at), uint64(e.tokens), uint64(e.refunded))
			}
			break
		}
	}
	for _, l := range w.limits {
		p := w.police(l)
		p.Refund(int64(w.now), 0)
		d.add(math.Float64bits(p.Depth()))
	}
}
