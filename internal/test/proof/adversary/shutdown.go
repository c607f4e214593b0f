package adversary

import (
	"time"
)

// maxRounds is the number of rounds within which every bucket must close. A return that fails waits
// for a second at most, and nothing fails here.
const maxRounds = 400

// shutDown ends a world. The network delivers or loses what is under way, and is healthy from then
// on; every process returns what it holds; leases end. Then every token must be accounted for.
func (w *World) shutDown(deliver bool) {
	if deliver {
		w.flow()
	}
	w.requests, w.replies = nil, nil
	for _, p := range w.processes {
		p.clockError, p.roundTrip = 0, defaultRoundTrip
		for p.leave() {
		}
		for _, b := range p.buckets {
			if b.call != nil {
				b.giveUp()
			}
		}
		p.cache.Empty(p.now())
	}
	w.check()
	for round := 0; w.busy(); round++ {
		if round == maxRounds {
			w.Failf("a bucket does not close: %s", w.leftOver())
			return
		}
		w.round()
		w.check()
	}
	w.bound()
	w.checkEnd()
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

// round lets every process do what is due. If nothing is due, time advances until something is.
func (w *World) round() {
	due, next := false, time.Duration(0)
	for _, p := range w.processes {
		p.cache.Empty(p.now())
		for _, b := range append([]*bucket(nil), p.buckets...) {
			switch {
			case b.queued:
				due = true
				w.flow()
			case isDue(b):
				due = true
				b.look()
			case b.checkAt > 0 && (next == 0 || p.until(b.checkAt) < next):
				next = p.until(b.checkAt)
			}
		}
	}
	if !due && next > 0 {
		w.advance(next)
	}
}

// checkEnd checks what must be true of a bucket that all processes have left.
func (w *World) checkEnd() {
	total := int64(0) // admitted, charged or burnt
	for _, p := range w.processes {
		s := p.released
		if s.Held > 0 {
			w.Failf("%s closed with %d tokens in hand", p.id, s.Held)
		}
		total += s.Spent + s.Settled + s.Burnt + p.writtenOff
		if p.unanswered != nil {
			total += p.unanswered.charged
		}
	}
	if w.scope.Lossless {
		c := w.newCall(w.policies[0])
		level := w.exchange(c).Level
		if want := w.scope.burst() - total - w.takenByOutsiders - w.undelivered + w.credited; level != want {
			w.Failf("the bucket is left with %d tokens, and should have %d: admitted, charged or burnt %d, taken by others %d, "+
				"granted in vain %d, refunded in vain %d", level, want, total, w.takenByOutsiders, w.undelivered,
				w.credited)
		}
		return
	}
	// if the server's clock was set back, a call that writes has to notice: only then the bucket's
	// time goes on
	w.outsider(1)
	w.advance(2*w.scope.longestLease() + w.scope.untilFull() + w.setBacks)
	for _, policy := range w.policies {
		if level := w.exchange(w.newCall(policy)).Level; level != policy.Cap {
			w.Failf("after everything has ended the bucket has %d tokens of %d", level, policy.Cap)
		}
	}
}

// leftOver describes what keeps a bucket open.
func (w *World) leftOver() string {
	for _, p := range w.processes {
		for _, b := range p.buckets {
			return p.id + " " + b.describe()
		}
	}
	return "nothing that is known"
}
