package legal

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// failures is what a process' fail modes may admit of one policy, and what they admitted. player.mu
// guards it.
type failures struct {
	modes  []modeFrom // by time
	shares []*history // of fail-local, by key: each share is a bucket of its own
}

// modeFrom is a fail mode and the time from which it is in force.
type modeFrom struct {
	from time.Duration
	mode tiered.FailMode
}

func newFailures(w *player, p tiered.Policy) *failures {
	f := new(failures)
	for k := range keys {
		s := newHistory(w.base, 0, k, tiered.Policy{Limit: p.Limit}, 0, true)
		s.life = 0 // nobody else has tokens of a share
		f.shares = append(f.shares, s)
	}
	return f
}

// setMode records that a fail mode is in force from now on.
func (f *failures) setMode(now time.Duration, m tiered.FailMode) {
	if n := len(f.modes); n == 0 || f.modes[n-1].mode != m {
		f.modes = append(f.modes, modeFrom{now, m})
	}
}

// had reports whether a fail mode was in force at some time from before to after.
func (f *failures) had(m tiered.FailMode, before, after time.Duration) bool {
	for i, x := range f.modes {
		ended := i+1 < len(f.modes) && f.modes[i+1].from < before
		if x.mode == m && x.from <= after && !ended {
			return true
		}
	}
	return false
}

// share returns the limit of the process' share of a key: one part in as many as the process knows
// to be there. Of several limits the smallest burst and the slowest rate count. With standing
// shares the share is of what Redis has, which is less. mu is held.
func (p *process) share(policy, key int) tiered.Limit {
	l := p.limit(policy, key)
	if free(l) {
		return l
	}
	each := l.Each()
	l = each[0]
	l.Burst, l.Per, l.Calendar = burst(l), perOf(l), tiered.Calendar{}
	for _, also := range each[1:] {
		l.Burst = min(l.Burst, burst(also))
		if float64(also.Per)/float64(also.Tokens) > float64(l.Per)/float64(l.Tokens) {
			l.Tokens, l.Per = also.Tokens, also.Per
		}
	}
	fleet := max(p.wire.fleet(policy), int64(p.player.plan.Options.Processes), 1)
	l.Burst = max(l.Burst/fleet, 1)
	l.Per = min(l.Per, never/time.Duration(fleet)) * time.Duration(fleet) // a faster rate, rather than none
	return l
}

// fleet returns how many processes have the policy of a place, as the store said last: the node
// that said the fewest. The limiter keeps a larger number for a while. player.mu is held.
func (w *wire) fleet(place int) int64 {
	fewest := int64(math.MaxInt64)
	for _, c := range w.censuses {
		if place < len(c.Policies) {
			fewest = min(fewest, c.Policies[place].Processes)
		} else {
			fewest = min(fewest, c.Processes)
		}
	}
	if len(w.censuses) == 0 {
		return 0
	}
	return fewest
}

// counted records that the process hears how many processes there are. In a calm plan all count
// that have been open for longer than they take to announce themselves: only so do all shares
// together fit into the limit.
func (w *wire) counted(at remote.Node, c remote.Census) {
	const announced = 4 * second // a process announces itself every 3 s
	g := w.player
	g.mu.Lock()
	var p *process
	open := int64(0)
	for _, x := range g.slots {
		if x == nil { // the plan begins
			continue
		}
		if x.wire == w {
			p = x
		}
		if !x.leaves && g.now()-max(x.opened, g.plan.rest()) > announced {
			open++
		}
	}
	w.censuses[at] = c
	// A node that is one of several hears of the processes that have keys there.
	if p != nil && g.plan.Class == Calm && !g.moved && !p.leaves && !g.several() {
		for i := range g.plan.Policies {
			if at, ok := g.reloaded[i]; ok && g.now()-at < announced { // a process has just not had it
				continue
			}
			if n := w.fleet(i); n < open {
				g.fault("fallback", "at %v process %d hears of %d processes with policy %d, and there are %d",
					g.now(), p.slot, n, i, open)
			}
		}
	}
	g.mu.Unlock()
	if p != nil {
		p.register()
	}
}

// fellBack records and checks what a fail mode decided; mu is held.
func (p *process) fellBack(b *history, cost int64, before, after time.Duration, d *tiered.Decision) {
	w, f := p.player, p.failures[b.policy]
	var m tiered.FailMode
	switch d.Reason {
	case tiered.Fallback, tiered.FallbackSpent:
		m = tiered.FailLocal
		s := f.shares[b.key]
		if d.Allowed { // a share counts in ns, and takes a wait of under one for none
			s.admitted(before, after+2*time.Nanosecond, cost, true)
		}
		hold := time.Duration(0)
		if w.plan.Plans[b.policy] { // a request may have carried the limit, and then a larger one stays for a while
			hold = lua.TermsHold
		}
		s.end(after+time.Nanosecond, hold) // a share that was not asked refills by the limit and the fleet that it knew
	case tiered.Open:
		m = tiered.FailOpen
	case tiered.Unavailable:
		m = tiered.FailClosed
	default:
		return
	}
	if d.Allowed {
		b.alone(after, cost)
	}
	if !f.had(m, before, after) {
		w.fault("fallback", "at %v policy %d, key %d: %v, and its fail mode is another", w.now(), b.policy, b.key, d.Reason)
	}
}

// judgeFallbacks compares what the fail modes of a process admitted with what they may: fail-closed
// nothing, fail-local its shares, also of keys that were evicted meanwhile. mu is held.
func (p *process) judgeFallbacks() {
	w := p.player
	stats := p.group.Stats()
	for i, f := range p.failures {
		r := stats.Policies[w.plan.Policies[i].Name].Requests
		if r.Fallback > 0 && !f.had(tiered.FailLocal, 0, never) || r.Open > 0 && !f.had(tiered.FailOpen, 0, never) {
			w.fault("fallback", "policy %d of process %d admits %+v, and never had such a fail mode", i, p.slot, r)
		}
		for k, s := range f.shares {
			if n, where := s.overBucket(s.terms); n > 0 {
				w.fault("fallback", "policy %d, key %d: process %d admits %v more than its share: %s", i, k, p.slot, n, where)
			}
		}
	}
}
