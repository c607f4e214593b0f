package adversary

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/ideal"
)

// rounding is what is forgiven to a level that is kept as a double, tokens.
const rounding = 1e-6

// admissions is what was admitted, in order of time.
type admissions struct{ events []event }

// event is an instant at which tokens were admitted: how many may become known later, for a direct take counts when it is
// executed, and what is put back was never taken.
type event struct {
	at       time.Duration
	tokens   int64
	refunded int64 // and given back to the bucket
}

// open returns an event at now.
func (a *admissions) open(now time.Duration) int {
	a.events = append(a.events, event{at: now})
	return len(a.events) - 1
}

func (a *admissions) refund(now time.Duration, n int64) {
	a.events[a.open(now)].refunded += n
}

// police lets an ideal bucket watch what was admitted.
func (w *World) police() *ideal.Policer {
	p := ideal.NewPolicer(w.scope.Tokens, w.scope.Per, w.scope.burst())
	for _, e := range w.admissions.events {
		if e.refunded > 0 {
			p.Refund(int64(e.at), e.refunded)
		}
		if e.tokens > 0 {
			p.Admit(int64(e.at), e.tokens)
		}
	}
	return p
}

// bound checks that all that was admitted fits into one ideal bucket.
func (w *World) bound() {
	if worst := w.police().Worst(); worst.Over > float64(w.conceded)+rounding {
		w.failf("over-admission: %v, conceded %d", worst, w.conceded)
	}
}

// depth reports how far below full an ideal bucket would be by now, tokens.
func (w *World) depth() float64 {
	p := w.police()
	p.Refund(int64(w.now), 0)
	return p.Depth()
}

// audit looks at everything, after a step.
func (w *World) audit() {
	s := &w.state
	if limit := float64(w.scope.burst()); s.exists && s.level+float64(s.escrow) > limit+rounding {
		w.failf("level %v + escrow %d > burst %v", s.level, s.escrow, limit)
	}
	out := int64(0)
	for _, r := range s.records {
		out += r.out
	}
	if out > s.escrow {
		w.failf("%d tokens are out by the records, %d are in escrow", out, s.escrow)
	}
	for _, p := range w.processes {
		spendable := int64(0)
		for _, b := range p.buckets {
			b.audit()
			live, _ := b.Bucket.Look(p.now())
			spendable += live
			if b.call != nil && p.now() < b.call.until {
				spendable += b.call.granted
			}
		}
		p.forget()
		if p.twin {
			continue
		}
		if cover := w.cover(p); spendable > cover && w.conceded == 0 {
			w.failf("%s can spend %d tokens, and its record covers %d", p.id, spendable, cover)
		}
	}
}

// audit checks the ledger: each token was granted once and is in one place.
func (b *bucket) audit() {
	w := b.process.world
	s := b.Stats()
	if s.Granted != s.Spent+s.Returned+s.Burnt+s.Held || min(s.Spent, s.Returned, s.Burnt, s.Held) < 0 {
		w.failf("%s: the ledger does not balance: %+v", b.process.id, s)
	}
	if s.Granted != b.granted {
		w.failf("%s was granted %d tokens, its ledger says %d", b.process.id, b.granted, s.Granted)
	}
	if s.Spent != b.spent {
		w.failf("%s admitted %d tokens, its ledger says %d", b.process.id, b.spent, s.Spent)
	}
}

// cover is how much of what a process holds the bucket knows to be out.
func (w *World) cover(p *process) int64 {
	r := w.state.records[p.id]
	if clock := max(w.server()+w.state.behind, w.state.last); clock >= r.end {
		return 0
	}
	return r.out
}

// paid checks that what was admitted without Redis was reported to it before the bucket was forgotten: once.
func (b *bucket) paid() {
	settled := b.Stats().Settled
	if settled > b.owes || settled < b.owes-b.owesLess && !b.forgiven {
		b.process.world.failf("%s owed %d tokens (%d of them given back), and reported %d",
			b.process.id, b.owes, b.owesLess, settled)
	}
}
