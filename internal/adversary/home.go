package adversary

import "time"

// patience is how many rounds everybody may take to go home. A return that fails waits for a second at most, and nothing
// fails here.
const patience = 400

// goHome ends a world: the network delivers or loses what is under way, and is healthy from then on; every process gives
// back what it holds; leases end. Then the books must balance.
func (w *World) goHome(deliver bool) {
	if deliver {
		w.flow()
	}
	w.requests, w.replies = nil, nil
	for _, p := range w.processes {
		p.guess, p.trip = 0, trip
		for p.leave() {
		}
		for _, b := range p.buckets {
			if b.call != nil {
				b.giveUp()
			}
		}
		p.cache.Empty(p.now())
	}
	w.audit()
	for round := 0; w.busy(); round++ {
		if round == patience {
			w.failf("a bucket does not close: %s", w.leftOver())
			return
		}
		w.round()
		w.audit()
	}
	w.bound()
	w.settled()
}

// busy reports whether any bucket is still open.
func (w *World) busy() bool {
	for _, p := range w.processes {
		if keys, leaving, _ := p.cache.Counts(); keys+leaving > 0 {
			return true
		}
	}
	return false
}

// round lets everybody do what is due, and if nothing is, time pass until something is.
func (w *World) round() {
	due, next := false, time.Duration(0)
	for _, p := range w.processes {
		p.cache.Empty(p.now())
		for _, b := range append([]*bucket(nil), p.buckets...) {
			switch {
			case b.queued:
				due = true
				w.flow()
			case b.checkAt > 0 && b.checkAt <= p.now():
				due = true
				b.checkAt = 0
				b.apply(b.Check(p.now()))
			case b.checkAt > 0 && (next == 0 || p.until(b.checkAt) < next):
				next = p.until(b.checkAt)
			}
		}
	}
	if !due && next > 0 {
		w.pass(next)
	}
}

// settled checks what must be true of a bucket that everybody has left.
func (w *World) settled() {
	total := int64(0) // admitted, charged or burnt, all told
	for _, p := range w.processes {
		s := p.released
		if s.Held > 0 {
			w.failf("%s closed with %d tokens in hand", p.id, s.Held)
		}
		total += s.Spent + s.Settled + s.Burnt + p.forgotten
		if p.unheard != nil {
			total += p.unheard.charged
		}
	}
	if w.scope.Books {
		c := w.wire(w.policies[0])
		level := w.ask(c).Level
		if want := w.scope.burst() - total - w.outside - w.vain + w.credited; level != want {
			w.failf("the bucket is left with %d tokens, the books say %d: admitted, charged or burnt %d, taken by others %d, "+
				"granted in vain %d, refunded in vain %d", level, want, total, w.outside, w.vain, w.credited)
		}
		return
	}
	w.outsider(1) // if the server's clock was set back, a call that writes has to find out: only then time goes on
	w.pass(2*w.scope.longestLease() + w.scope.untilFull() + w.setBacks)
	for _, policy := range w.policies {
		if level := w.ask(w.wire(policy)).Level; level != policy.Cap {
			w.failf("after everything has ended the bucket has %d tokens of %d", level, policy.Cap)
		}
	}
}

// leftOver names what keeps a bucket open.
func (w *World) leftOver() string {
	for _, p := range w.processes {
		for _, b := range p.buckets {
			return p.id + " " + b.describe()
		}
	}
	return "nothing that is known"
}
