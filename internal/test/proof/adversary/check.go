package adversary

import (
	"math"
	"time"

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

// rule is what an algorithm promises. It compares the admissions with each limit, and what the store counts with what
// is used and can be used.
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

// event is an instant at which tokens were admitted. Their number may become known later: a direct take counts when it
// is executed, and tokens that are put back were never taken.
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

// slack returns the tokens that were left of the limit that came nearest to its bound, +Inf where an assumption was
// broken.
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

// checkDebt checks that what was admitted without Redis was reported to it once before the bucket was dropped.
func (b *bucket) checkDebt() {
	settled := b.Stats().Settled
	if settled > b.debt || settled < b.debt-b.debtReturned && !b.forgiven {
		b.process.world.Failf("%s owed %d tokens (%d of them given back), and reported %d",
			b.process.id, b.debt, b.debtReturned, settled)
	}
}
