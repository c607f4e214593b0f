package measure

import (
	"slices"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// tally is where tokens are, by Stats, and what is wrong with that.
type tally struct {
	granted, spent, returned, burnt, held, settled int64

	duplicated, uncounted int64
}

func (t *tally) add(o tally) {
	t.granted += o.granted
	t.spent += o.spent
	t.returned += o.returned
	t.burnt += o.burnt
	t.held += o.held
	t.settled += o.settled
	t.duplicated += o.duplicated
	t.uncounted += o.uncounted
}

func (t tally) minus(o tally) tally {
	return tally{
		t.granted - o.granted, t.spent - o.spent, t.returned - o.returned, t.burnt - o.burnt, t.held - o.held, t.settled - o.settled,
		t.duplicated - o.duplicated, t.uncounted - o.uncounted,
	}
}

// counts are what Stats count besides tokens.
type counts struct{ evictions, lateCalls, stale, losses int64 }

func (c *counts) add(o counts) {
	c.evictions += o.evictions
	c.lateCalls += o.lateCalls
	c.stale += o.stale
	c.losses += o.losses
}

func (c counts) minus(o counts) counts {
	return counts{c.evictions - o.evictions, c.lateCalls - o.lateCalls, c.stale - o.stale, c.losses - o.losses}
}

// account is the books of a process: what its Stats said last, and what others saw of it.
type account struct {
	limits []tally
	seen   []seen
	counts counts
	redis  int64 // granted to it
	ended  bool  // it was compared with what others saw
	dead   bool  // what it held is burnt
}

// seen is the tokens that callers saw admitted.
type seen struct{ granted, alone int64 }

// books are the sums over all processes at an instant.
type books struct {
	limits     []tally
	counts     counts
	duplicated int64 // heard of, and not granted
}

// all is the tally of all limits.
func (b *books) all() (t tally) {
	for _, l := range b.limits {
		t.add(l)
	}
	t.duplicated += b.duplicated
	return t
}

func (b *books) clone() books {
	c := *b
	c.limits = slices.Clone(b.limits)
	return c
}

// ledger keeps the books.
type ledger struct {
	names     []string // of the limits
	processes []account
	now       books
	step      int     // that now is in
	steps     []books // at the end of each step before it
	keys      []int   // the most that a process kept, by step
	redis     []int64 // granted by Redis, by step
	heardOf   bool    // Granted was called
	known     bool    // there was a sample
	compared  bool    // a process was compared with its callers
}

func newLedger(s *scenario.Scenario, sr *series) ledger {
	n := len(sr.calls)
	l := ledger{steps: make([]books, n), keys: make([]int, n), redis: make([]int64, n)}
	for i := range s.Limits {
		l.names = append(l.names, s.Limits[i].Name)
	}
	l.now.limits = make([]tally, len(l.names))
	return l
}

func (l *ledger) of(process int) *account {
	l.processes = grown(l.processes, process)
	a := &l.processes[process]
	if a.limits == nil {
		a.limits, a.seen = make([]tally, len(l.names)), make([]seen, len(l.names))
	}
	return a
}

// admitted notes what a caller saw.
func (l *ledger) admitted(process, limit int, tokens int64, r tiered.Reason) {
	switch s := &l.of(process).seen[limit]; r {
	case tiered.Granted:
		s.granted += tokens
	case tiered.Shared, tiered.Open:
		s.alone += tokens
	}
}

func (l *ledger) grant(step, process int, tokens int64) {
	l.heardOf = true
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
		t := tally{granted: p.Granted, spent: p.Spent, returned: p.Returned, burnt: p.Burnt, held: p.Held, settled: p.Settled}
		t.duplicated = max(0, p.Spent+p.Returned+p.Burnt+p.Held-p.Granted)
		heard += p.Granted
		if a.dead {
			t.burnt, t.held = t.burnt+t.held, 0
		}
		if last {
			t.duplicated += max(0, a.seen[i].granted-p.Spent)
			t.uncounted = max(0, a.seen[i].alone-p.Shared-p.Open)
		}
		l.now.limits[i].add(t.minus(a.limits[i]))
		a.limits[i] = t
	}
	c := counts{evictions: int64(s.Evictions)}
	for _, n := range s.Nodes {
		c.add(counts{lateCalls: n.LateCalls, stale: n.StaleReplies, losses: n.StateLosses})
	}
	l.now.counts.add(c.minus(a.counts))
	a.counts = c
	if last && !a.ended {
		a.ended, l.compared = true, true
		if l.heardOf {
			l.now.duplicated += max(0, heard-a.redis)
		}
	}
	l.known = true
	l.keys[step] = max(l.keys[step], s.Keys)
}

// forward closes the steps before one. A sample that comes late counts in the step that is now.
func (l *ledger) forward(step int) {
	for ; l.step < step; l.step++ {
		l.steps[l.step] = l.now.clone()
	}
}

// died burns what a process held.
func (l *ledger) died(step, process int) {
	l.forward(step)
	a := l.of(process)
	a.dead = true
	for i := range a.limits {
		t := &a.limits[i]
		l.now.limits[i].add(tally{burnt: t.held, held: -t.held})
		t.burnt, t.held = t.burnt+t.held, 0
	}
}

// joined begins the books of a new process.
func (l *ledger) joined(process int) {
	l.processes = grown(l.processes, process)
	l.processes[process] = account{}
}

// at is the books after so many steps.
func (l *ledger) at(steps int) books {
	switch {
	case steps <= 0:
		return books{limits: make([]tally, len(l.names))}
	case steps-1 < l.step:
		return l.steps[steps-1]
	}
	return l.now
}

// granted is the tokens that Redis granted in so many steps.
func (l *ledger) granted(steps int) (sum int64) {
	for _, n := range l.redis[:steps] {
		sum += n
	}
	return sum
}
