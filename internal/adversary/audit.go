package adversary

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/invariant"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// rounding is what is forgiven to a level that is kept as a double, tokens.
const rounding = 1e-6

// limit is one that was in use: the largest, where processes differ.
type limit struct {
	lua.Limit
	from     int     // the first admission that it is for
	conceded int64   // tokens that broken assumptions may cost
	worst    float64 // the most that was admitted beyond it
}

// all is what a lost bucket may cost.
func (l *limit) all() int64 { return l.Cap }

// rule is what an algorithm promises. It holds the admissions against each limit, and what the store counts against what is
// used and can be.
type rule interface {
	over(w *World, l *limit) float64              // by how much what was admitted exceeds a limit, tokens; below 0 it does not
	counted(w *World, spendable int64)            // spendable is what all processes together may still admit
	refund(w *World, r *request, flags lua.Flags) // the store has executed it
	reset(w *World, r *request)                   //
	owed(w *World, r *request)                    // its debt was charged now, for the first time
	asked(w *World, x *invariant.Exchange)        // the store has answered
	digest(w *World, d *digester)                 // of what the future depends on
}

func ruleOf(s *Scope) rule {
	switch s.Algorithm {
	case lua.FixedWindow:
		return fixedRule{}
	case lua.SlidingWindow:
		return slidingRule{}
	default:
		return refillRule{}
	}
}

// know adds limits to those that the bounds are by.
func (w *World) know(limits []lua.Limit) {
	for i, l := range limits {
		if i == len(w.limits) {
			w.limits = append(w.limits, &limit{Limit: l, worst: -float64(l.Cap)})
		}
		known := w.limits[i]
		known.Cap, known.Tokens, known.Period = max(known.Cap, l.Cap), max(known.Tokens, l.Tokens), min(known.Period, l.Period)
	}
}

// admissions is what was admitted, in order of time.
type admissions struct {
	events  []event
	changed bool // since it was held against the limits
}

// event is an instant at which tokens were admitted: how many may become known later, for a direct take counts when it is
// executed, and what is put back was never taken.
type event struct {
	at       time.Duration
	key      int64 // what the bucket's clock showed, µs
	segment  int   // of a fixed window's
	tokens   int64
	refunded int64 // and given back to a bucket that refills
}

// open returns an event now.
func (w *World) open() int {
	w.turn()
	a := &w.admissions
	a.events = append(a.events, event{at: w.now, key: w.clock(), segment: w.segment})
	return len(a.events) - 1
}

// admit notes that n tokens more were admitted at an event, or fewer.
func (w *World) admit(event int, n int64) {
	w.admissions.events[event].tokens += n
	w.admissions.changed = true
}

// clock reads the bucket's clock, µs: the server's, but that what was set back is waited out or made up for.
func (w *World) clock() int64 {
	server := w.server()
	if w.scope.Algorithm == lua.FixedWindow && w.state.Last-server > lua.MaxBack.Microseconds() {
		return server // its windows keep to the server's clock
	}
	return max(server+w.state.Behind, w.state.Last)
}

// bound checks that all that was admitted is within each limit.
func (w *World) bound() {
	for i, l := range w.limits {
		if l.worst = max(l.worst, w.rule.over(w, l)); l.worst > float64(l.conceded)+rounding {
			w.failf("over-admission: limit %d (%+v) by %v, conceded %d", i+1, l.Limit, l.worst, l.conceded)
		}
	}
}

// slack reports how many more tokens would have been within the limit that came nearest to its bound; no end of them where an
// assumption was broken.
func (w *World) slack() float64 {
	least := math.Inf(1)
	for _, l := range w.limits {
		if l.conceded == 0 {
			least = min(least, -l.worst)
		}
	}
	return least
}

// audit looks at everything, after a step.
func (w *World) audit() {
	all := int64(0)
	for _, p := range w.processes {
		spendable := int64(0)
		for _, b := range p.buckets {
			b.audit()
			live, _ := b.Bucket.Peek(p.now())
			spendable += live
			if b.call != nil && p.now() < b.call.until {
				spendable += b.call.granted
			}
		}
		p.forget()
		if p.twin {
			continue
		}
		if !w.harmed {
			w.found(p, invariant.Covered(spendable, w.cover(p)))
		}
		all += spendable
	}
	w.rule.counted(w, all)
	if w.scope.windows() && w.admissions.changed { // what is given back later was admitted all the same: look now
		w.admissions.changed = false
		w.bound()
	}
}

// found notes what a law says of a process.
func (w *World) found(p *process, f invariant.Finding) {
	if f.Broken() {
		w.failf("%s: %v", p.id, f)
	}
}

// audit checks the ledger: each token was granted once and is in one place.
func (b *bucket) audit() {
	w := b.process.world
	s := b.Stats()
	ledger := invariant.Ledger{Granted: s.Granted, Spent: s.Spent, Returned: s.Returned, Burnt: s.Burnt, Held: s.Held}
	w.found(b.process, ledger.Check(b.late))
	if s.Granted != b.granted {
		w.failf("%s was granted %d tokens, its ledger says %d", b.process.id, b.granted, s.Granted)
	}
	if s.Spent != b.spent {
		w.failf("%s admitted %d tokens, its ledger says %d", b.process.id, b.spent, s.Spent)
	}
}

// cover is how much of what a process holds the bucket knows to be out.
func (w *World) cover(p *process) int64 {
	r := w.state.Records[p.id]
	end := r.End
	if w.scope.Algorithm == lua.FixedWindow { // set back, a later call's window may end before: what is out counts to the last end
		latest, _ := w.state.whole("e")
		end = max(end, latest)
	}
	if w.clock() >= end {
		return 0
	}
	return r.Out
}

// paid checks that what was admitted without Redis was reported to it before the bucket was forgotten: once.
func (b *bucket) paid() {
	settled := b.Stats().Settled
	if settled > b.owes || settled < b.owes-b.owesLess && !b.forgiven {
		b.process.world.failf("%s owed %d tokens (%d of them given back), and reported %d",
			b.process.id, b.owes, b.owesLess, settled)
	}
}
