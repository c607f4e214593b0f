package adversary

import (
	"math"
	"strconv"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/ideal"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// refillRule is that of token buckets, one or several: what was admitted fits into an ideal bucket of each limit.
type refillRule struct{}

// police lets an ideal bucket watch what was admitted.
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

func (refillRule) over(w *World, l *limit) float64 { return w.police(l).Worst().Over }

func (refillRule) counted(w *World, _ int64) {
	s := &w.state
	if !s.exists {
		return
	}
	for i, l := range w.limits {
		if i > len(w.writer.Also) {
			continue // by a call that did not know of this limit
		}
		most := float64(l.Cap - s.escrow)
		if l.conceded > 0 { // what is out may be more than it has, and no debt takes a level below its floor
			most = max(most, -float64(l.Cap)-math.Floor(float64(l.Tokens)*1e6/float64(l.Period)))
		}
		if level := s.level(w, i, l.Limit); level > most+rounding {
			w.failf("level %d: %v + escrow %d > burst %d", i+1, level, s.escrow, l.Cap)
		}
	}
	out := int64(0)
	for _, r := range s.records {
		out += r.Out
	}
	if out > s.escrow {
		w.failf("%d tokens are out by the records, %d are in escrow", out, s.escrow)
	}
}

// refund counts now, as in a central bucket that gets the same refunds.
func (refillRule) refund(w *World, r *request, _ lua.Flags) {
	sum := int64(0)
	for _, part := range r.refunds {
		sum += part.n
	}
	w.admissions.events[w.open()].refunded += sum
}

func (refillRule) reset(w *World, _ *request) {
	most := int64(0)
	for _, l := range w.limits {
		most = max(most, l.Cap)
	}
	w.admissions.events[w.open()].refunded += 4 * most
}

func (refillRule) owed(*World, *request) {}

// asked checks that a bucket got no more since it was last written than the limit of that writer brings, whatever the caller's is,
// beside what comes back from escrow and by refunds; and that a call by another limit writes, so that the change has a date.
func (refillRule) asked(w *World, x *exchange) {
	if !x.before.exists || x.answer.Flags&lua.Created != 0 || x.answer.Code > lua.Denied || w.harmed {
		return
	}
	then, now := limitsOf(&x.writer), limitsOf(&x.call)
	elapsed := float64(w.state.last - x.before.last)
	for i := range min(len(then), len(now)) { // all have them in one order; what only one knows of is new
		if !x.wrote {
			if then[i] != now[i] {
				w.failf("limit %d changed from %+v to %+v with a call that was not written", i+1, then[i], now[i])
			}
			continue
		}
		back := float64(x.call.Refund)
		due := x.before.level(w, i, then[i]) + float64(x.before.escrow) + elapsed*float64(then[i].Tokens)/float64(then[i].Period) + back
		lowest := -float64(now[i].Cap) - math.Floor(float64(now[i].Tokens)*1e6/float64(now[i].Period)) + back // debt below is forgiven
		level := w.state.level(w, i, now[i])
		if has := level + float64(w.state.escrow); x.call.Reset == 0 && has > due+rounding && level > lowest+rounding {
			w.failf("limit %d: level + escrow is %v, and no more than %v could have come by %+v", i+1, has, due, then[i])
		}
	}
}

// limitsOf are a call's.
func limitsOf(c *lua.Call) []lua.Limit {
	return append([]lua.Limit{{Cap: c.Cap, Tokens: c.Tokens, Period: c.Period, Span: c.Span}}, c.Also...)
}

// level is that of the i-th bucket.
func (s *state) level(w *World, i int, l lua.Limit) float64 {
	field := "l"
	if w.scope.Algorithm == lua.TokenBuckets {
		field += strconv.FormatInt(l.Period, 10)
	}
	level, err := strconv.ParseFloat(s.fields[field], 64)
	if err != nil {
		w.failf("level %d is %q", i+1, s.fields[field])
	}
	return level
}

// digest adds how full ideal buckets would be, or, as long as somebody may yet learn of a direct take that was executed in the
// past, everything.
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
