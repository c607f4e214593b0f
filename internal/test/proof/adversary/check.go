package adversary

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/invariant"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// rounding is the tolerance for a level that is kept as a double, in tokens.
const rounding = 1e-6

// limit is one in use: the largest, if processes differ.
type limit struct {
	lua.Limit
	from     int     // the first admission that it counts
	conceded int64   // tokens that broken assumptions may cost
	worst    float64 // the most that was admitted beyond it
}

// all is what a lost bucket may cost.
func (l *limit) all() int64 { return l.Cap }

// rule is what an algorithm promises. It compares the admissions with each limit, and what the
// store counts with what is used and can be used.
type rule interface {
	excess(w *World, l *limit) float64            // tokens admitted beyond a limit; negative: none
	counted(w *World, spendable int64)            // spendable: tokens that all processes may still admit
	refund(w *World, r *request, flags lua.Flags) // the store has executed it
	reset(w *World, r *request)                   //
	debtCharged(w *World, r *request)             // its debt was charged now, for the first time
	executed(w *World, x *invariant.Exchange)     // the store has answered
	digest(w *World, d *digester)                 // of what the future depends on
}

func ruleOf(s *Scope) rule {
	switch s.Algorithm {
	case lua.FixedWindow:
		return fixedRule{}
	case lua.SlidingWindow:
		return slidingRule{}
	case lua.TokenBucket, lua.TokenBuckets:
		return refillRule{}
	default:
		panic("adversary: no rule of a " + s.Algorithm.String())
	}
}

// addLimits adds limits to those that are checked.
func (w *World) addLimits(limits []lua.Limit) {
	for i, l := range limits {
		if i == len(w.limits) {
			w.limits = append(w.limits, &limit{Limit: l, worst: -float64(l.Cap)})
		}
		known := w.limits[i]
		known.Cap, known.Tokens, known.Period = max(known.Cap, l.Cap), max(known.Tokens, l.Tokens),
			min(known.Period, l.Period)
	}
}

// admissions are what was admitted, in order of time.
type admissions struct {
	events  []event
	changed bool // since it was compared with the limits
}

// event is an instant at which tokens were admitted. Their number may become known later: a direct
// take counts when it is executed, and tokens that are put back were never taken.
type event struct {
	at       time.Duration
	key      int64 // the bucket's clock, µs
	segment  int   // of a fixed window
	tokens   int64
	refunded int64 // returned to a bucket that refills
}

// newEvent returns an event now.
func (w *World) newEvent() int {
	w.updateSegment()
	a := &w.admissions
	a.events = append(a.events, event{at: w.now, key: w.clock(), segment: w.segment})
	return len(a.events) - 1
}

// admit adds n admitted tokens to an event. n may be negative.
func (w *World) admit(event int, n int64) {
	w.admissions.events[event].tokens += n
	w.admissions.changed = true
}

// clock returns the bucket's clock, µs: the server's, but a set-back is waited out or made up for.
func (w *World) clock() int64 {
	server := w.server()
	if w.scope.Algorithm == lua.FixedWindow && w.state.Last-server > lua.MaxBack.Microseconds() {
		return server // its windows keep to the server's clock
	}
	return max(server+w.state.Behind, w.state.Last)
}

// bound checks that the admissions are within each limit.
func (w *World) bound() {
	for i, l := range w.limits {
		if l.worst = max(l.worst, w.rule.excess(w, l)); l.worst > float64(l.conceded)+rounding {
			w.Failf("over-admission: limit %d (%+v) by %v, conceded %d", i+1, l.Limit, l.worst, l.conceded)
		}
	}
}

// slack returns the tokens that were left of the limit that came nearest to its bound, +Inf where
// an assumption was broken.
func (w *World) slack() float64 {
	least := math.Inf(1)
	for _, l := range w.limits {
		if l.conceded == 0 {
			least = min(least, -l.worst)
		}
	}
	return least
}

// check checks every rule, after a step.
func (w *World) check() {
	all := int64(0)
	for _, p := range w.processes {
		spendable := int64(0)
		for _, b := range p.buckets {
			b.checkLedger()
			live, _ := b.Bucket.Peek(p.now())
			spendable += live
			if b.call != nil && p.now() < b.call.expires {
				spendable += b.call.granted
			}
		}
		p.forget()
		if p.twin {
			continue
		}
		if !w.damaged {
			w.report(p, invariant.Covered(spendable, w.covered(p)))
		}
		all += spendable
	}
	w.rule.counted(w, all)
	if w.scope.windows() && w.admissions.changed { // what is given back later was admitted all the same: look now
		w.admissions.changed = false
		w.bound()
	}
}

// report fails the world if a rule was broken by a process.
func (w *World) report(p *process, f invariant.Finding) {
	if f.Broken() {
		w.Failf("%s: %v", p.id, f)
	}
}

// checkLedger checks that each token was granted once and is in one place.
func (b *bucket) checkLedger() {
	w := b.process.world
	s := b.Stats()
	ledger := invariant.Ledger{Granted: s.Granted, Spent: s.Spent, Returned: s.Returned, Burnt: s.Burnt, Held: s.Held}
	w.report(b.process, ledger.Check(b.returnedLate))
	if s.Granted != b.granted {
		w.Failf("%s was granted %d tokens, its ledger says %d", b.process.id, b.granted, s.Granted)
	}
	if s.Spent != b.spent {
		w.Failf("%s admitted %d tokens, its ledger says %d", b.process.id, b.spent, s.Spent)
	}
}

// covered returns how many tokens of a process the bucket has on record.
func (w *World) covered(p *process) int64 {
	r := w.state.Records[p.id]
	end := r.End
	// set back, a later call's window may end before: what is out counts to the last end
	if w.scope.Algorithm == lua.FixedWindow {
		latest, _ := w.state.integer("e")
		end = max(end, latest)
	}
	if w.clock() >= end {
		return 0
	}
	return r.Out
}

// checkDebt checks that what was admitted without Redis was reported to it once before the bucket
// was dropped.
func (b *bucket) checkDebt() {
	settled := b.Stats().Settled
	if settled > b.debt || settled < b.debt-b.debtReturned && !b.forgiven {
		b.process.world.Failf("%s owed %d tokens (%d of them given back), and reported %d",
			b.process.id, b.debt, b.debtReturned, settled)
	}
}

// toldInTime checks what a caller is told. It knows of no clock that was set back.
func (w *World) toldInTime(c *lua.Call, answer *lua.Reply) {
	if answer.Code != lua.Denied || w.setBacks > 0 {
		return
	}
	ends := map[string]int64{}
	for id, l := range w.state.Records {
		if l.Out > 0 {
			ends[id] = l.End
		}
	}
	if f := invariant.Told(c, answer, max(answer.Now, w.state.Last), ends); f.Broken() {
		w.Failf("%v", f)
	}
}

// refillRule is that of token buckets, one or several: the admissions fit into an ideal bucket of
// each limit.
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

// policeKept shows an ideal bucket what was admitted and kept, and what was given, each at its own
// instant.
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

// priceOfReturns returns by how much what was kept may exceed a limit. While tokens are out that
// come back later, the bucket refills into their room: by the rate for as long as any are out, and
// by what is given meanwhile, but never by more than are out.
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

// digest adds how full ideal buckets would be. While the reply of a direct take that was executed
// in the past is under way, and once tokens came back, it adds every admission.
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
