package measure

import (
	"slices"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// tally is what Stats count, and what is wrong with it.
type tally [tallyFields]int64

// The fields of a tally: tokens, mistakes in tokens, and other counts.
const (
	grants = iota
	spent
	returned
	burnt
	held
	settled
	duplicated
	uncounted
	evictions
	lateCalls
	staleReplies
	stateLosses
	tallyFields
)

func (t *tally) add(o tally) {
	for i, n := range o {
		t[i] += n
	}
}

func (t tally) minus(o tally) tally {
	for i, n := range o {
		t[i] -= n
	}
	return t
}

// totals are tallies of each limit, and of what belongs to none.
type totals struct {
	limits []tally
	rest   tally
}

// all adds up everything.
func (s *totals) all() tally {
	t := s.rest
	for _, l := range s.limits {
		t.add(l)
	}
	return t
}

func (s *totals) clone() totals { return totals{slices.Clone(s.limits), s.rest} }

// account is what is known of a process: what its Stats said last, and what others saw of it.
type account struct {
	totals
	seen  []seen
	redis int64 // granted to it
	ended bool  // it was compared with what others saw
	dead  bool  // what it held is burnt
}

// seen is the tokens that callers saw admitted.
type seen struct{ granted, alone int64 }

// ledger keeps the totals over all processes.
type ledger struct {
	names          []string // of the limits
	processes      []account
	now            totals
	step           int      // that now is in
	steps          []totals // at the end of each step before it
	keys           []int    // the most that a process kept, by step
	redis          []int64  // granted by Redis, by step
	seesGrants     bool     // Granted was called
	known          bool     // there was a sample
	checkedCallers bool     // a process was compared with its callers
}

func newLedger(s *scenario.Scenario, steps int) ledger {
	l := ledger{steps: make([]totals, steps), keys: make([]int, steps), redis: make([]int64, steps)}
	for i := range s.Limits {
		l.names = append(l.names, s.Limits[i].Name)
	}
	l.now.limits = make([]tally, len(l.names))
	return l
}

func (l *ledger) of(process int) *account {
	l.processes = grow(l.processes, process)
	a := &l.processes[process]
	if a.limits == nil {
		a.limits, a.seen = make([]tally, len(l.names)), make([]seen, len(l.names))
	}
	return a
}

// admitted records what a caller saw.
func (l *ledger) admitted(process, limit int, tokens int64, r tiered.Reason) {
	switch s := &l.of(process).seen[limit]; r {
	case tiered.Granted:
		s.granted += tokens
	case tiered.Shared, tiered.Open:
		s.alone += tokens
	}
}

func (l *ledger) grant(step, process int, tokens int64) {
	l.seesGrants = true
	l.redis[step] += tokens
	l.of(process).redis += tokens
}

// sample takes over what a process' Stats say at the end of a step.
func (l *ledger) sample(step, process int, s *tiered.Stats, last bool) {
	l.forward(step)
	a := l.of(process)
	var heard int64
	for i, name := range l.names {
		p := s.Policies[name]
		t := tally{
			grants: p.Granted, spent: p.Spent, returned: p.Returned, burnt: p.Burnt, held: p.Held, settled: p.Settled,
			duplicated: max(0, p.Spent+p.Returned+p.Burnt+p.Held-p.Granted),
		}
		heard += p.Granted
		if a.dead {
			t.burn()
		}
		if last {
			t[duplicated] += max(0, a.seen[i].granted-p.Spent-p.Standing)
			t[uncounted] = max(0, a.seen[i].alone-p.Shared-p.Open)
		}
		l.now.limits[i].add(t.minus(a.limits[i]))
		a.limits[i] = t
	}
	rest := tally{evictions: int64(s.Evictions)}
	for _, n := range s.Nodes {
		rest.add(tally{lateCalls: n.LateCalls, staleReplies: n.StaleReplies, stateLosses: n.StateLosses})
	}
	l.now.rest.add(rest.minus(a.rest))
	a.rest = rest
	if last && !a.ended {
		a.ended, l.checkedCallers = true, true
		if l.seesGrants { // heard of, and not granted
			l.now.rest[duplicated] += max(0, heard-a.redis)
		}
	}
	l.known = true
	l.keys[step] = max(l.keys[step], s.Keys)
}

// forward closes the steps before one. A sample that comes late counts in the present step.
func (l *ledger) forward(step int) {
	for ; l.step < step; l.step++ {
		l.steps[l.step] = l.now.clone()
	}
}

// burn moves what is held to what is burnt.
func (t *tally) burn() { t[burnt], t[held] = t[burnt]+t[held], 0 }

// died burns what a process held.
func (l *ledger) died(step, process int) {
	l.forward(step)
	a := l.of(process)
	a.dead = true
	for i := range a.limits {
		before := a.limits[i]
		a.limits[i].burn()
		l.now.limits[i].add(a.limits[i].minus(before))
	}
}

// joined begins the account of a new process.
func (l *ledger) joined(process int) {
	l.processes = grow(l.processes, process)
	l.processes[process] = account{}
}

// at returns the totals after so many steps.
func (l *ledger) at(steps int) totals {
	switch {
	case steps <= 0:
		return totals{limits: make([]tally, len(l.names))}
	case steps-1 < l.step:
		return l.steps[steps-1]
	}
	return l.now
}

// granted returns the tokens that Redis granted in so many steps.
func (l *ledger) granted(steps int) (sum int64) {
	for _, n := range l.redis[:steps] {
		sum += n
	}
	return sum
}
