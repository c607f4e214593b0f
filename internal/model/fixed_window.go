package model

import (
	"maps"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// fixedWindow is lua/fixed_window.lua in Go.
type fixedWindow struct {
	lending
	count  int64 // tokens used in the window that contains last
	forgot int64 // the newest time until its last reset: what was counted by then comes back no more; 0 for none
	newest int64 // the newest time before the server's clock was set back in it; 0 if it was not
}

// window returns the number of the window of the call's limit that contains an instant.
func (s *step) window(instant int64) int64 { return blockOf(instant-s.Phase, s.Period) }

// once reports whether the call means one window of the calendar, and not windows that follow each
// other. It is the window of number 0.
func (s *step) once() bool { return s.Phase >= s.Period }

// edge returns the end of the current window.
func (s *step) edge() int64 { return s.Phase + (s.window(s.now)+1)*s.Period }

// run implements state.
func (w *fixedWindow) run(s *step) (keep int64, written bool) {
	if s.once() {
		now := s.server
		if ahead := w.last - now; s.exists && ahead > 0 && ahead <= lua.MaxBack.Microseconds() {
			now = w.last
		}
		if s.window(now) != 0 {
			*s.reply = lua.Reply{Code: lua.Late, Now: s.server, Stamp: now}
			return 0, false
		}
	}
	return lease(s, w, &w.lending, w)
}

// load believes a large step back of the clock, because windows keep their alignment. It begins the
// next window once no lease of an earlier one is out. Leases end with their window.
func (w *fixedWindow) load(s *step) {
	if _, s.stepped = guard(s.last, s.server, 0); s.stepped {
		s.flags += lua.SteppedBack
		s.now = s.server
		s.latest = max(s.now, s.now+s.latest-s.last)
		if s.sweep > 0 {
			s.sweep = max(s.now, s.now+s.sweep-s.last)
		}
	}
	later := s.exists && s.window(s.now) > s.window(s.last)
	fresh := later && s.latest <= s.now
	if fresh {
		w.count, w.forgot, w.newest, w.lending = 0, 0, 0, lending{epoch: s.epoch, last: s.last}
	}
	s.leaseEnd = min(s.now+s.TTL, s.edge())
	s.maxPromise, s.keepsEnded = s.leaseEnd, true
	asked := min(s.Reset, s.now)
	if s.now > s.server { // the clock was set back: the window waits
		asked = s.now
	}
	s.forgets = s.resets && s.SafeBy(s.server+s.TTL) && s.window(asked) == s.window(s.now)
	// In a window of the calendar only what is out in leases goes on to count, if those of another
	// caller's window are.
	if s.once() && later && !fresh {
		s.forgets = true
	}
}

func (w *fixedWindow) memory(*step) float64 { return 0 } // it keeps all records

func (w *fixedWindow) refill(*step) {}

func (w *fixedWindow) takeBack(_ *step, n int64) { w.count -= n }

func (w *fixedWindow) carry(s *step, out int64) { w.count += max(0, s.Hold-out) }

func (w *fixedWindow) charge(s *step) {
	k := s.window(s.now)
	if s.stepped {
		w.newest = max(w.newest, s.last)
	}
	if s.forgets {
		w.forgot = max(s.now, s.last, w.newest)
	}
	if s.Refund > 0 && s.safe && w.refunds(s, s.now) && s.window(s.At) == k && s.At > w.forgot {
		w.count = max(w.count-s.Refund, s.Hold)
	}
	if s.Debt > 0 && s.window(s.Since) == k {
		charge := min(max(0, s.Debt-s.charged), max(0, s.Cap-w.count))
		w.count += charge
		s.charged += charge
	}
	if s.forgets {
		w.count = min(w.count, s.escrow)
	}
	w.count = max(w.count, s.Hold)
}

func (w *fixedWindow) refunds(s *step, instant int64) bool {
	return s.exists && s.Epoch == s.epoch && s.window(s.At) <= s.window(instant)
}

func (w *fixedWindow) level(s *step) (tokens, which int64) { return s.Cap - w.count, 1 }

func (w *fixedWindow) lend(_ *step, n int64) { w.count += n }

func (w *fixedWindow) retry(s *step) (after, which int64) {
	return s.sooner(s.edge() - s.server), 1
}

func (w *fixedWindow) answer(s *step) {
	if s.reply.Stamp = s.now; w.count > 0 {
		s.reply.Reset = max(0, s.edge()-s.server)
	}
}

// store keeps the key until the window and the last lease have ended. After a step back a lease may
// end later.
func (w *fixedWindow) store(s *step) (keep int64) {
	return keepFor(max(s.edge(), s.latest) - s.server)
}

// fields implements state.
func (w *fixedWindow) fields() map[string]string {
	f := w.lending.fields(lua.FixedWindow)
	delete(f, "z") // it believes each step back of the clock
	f["n"] = decimal(w.count)
	if w.forgot > 0 {
		f["f"] = decimal(w.forgot)
	}
	if w.newest > 0 {
		f["b"] = decimal(w.newest)
	}
	return f
}

// clone implements state.
func (w *fixedWindow) clone() state {
	twin := *w
	twin.leases = maps.Clone(w.leases)
	return &twin
}
