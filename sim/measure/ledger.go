package measure

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// tally is what Stats count, all limits together, and what is wrong with it.
type tally [tallyFields]int64

const (
	heard = iota // tokens that processes were granted
	burnt
	settled
	evictions
	lateCalls
	staleReplies
	stateLosses
	ungranted   // tokens that processes heard of and Redis did not grant
	unaccounted // tokens, with the ungranted ones
	tallyFields
)

// account is what is known of a process.
type account struct {
	tally          // by its last Stats
	held     int64 // by its last Stats
	redis    int64 // tokens that Redis granted to it
	limits   []seen
	complete bool // no more Stats will come
}

// seen is the tokens of a limit that callers saw admitted.
type seen struct{ granted, alone int64 }

// ledger compares what Redis granted, what processes count, and what callers saw.
type ledger struct {
	names     []string // of the limits
	processes []account
	windows   []*window
	whole     tally         // of the run, with the warm-up
	late      time.Duration // a sample counts for the time before it, up to so much late

	granted    int64 // by Redis
	seesGrants bool  // it was told of a grant
	known      bool  // a process was compared
}

func newLedger(s *scenario.Scenario, windows []*window, step time.Duration) ledger {
	l := ledger{windows: windows, late: step / 8}
	for i := range s.Limits {
		l.names = append(l.names, s.Limits[i].Name)
	}
	return l
}

func (l *ledger) of(process int) *account {
	l.processes = grow(l.processes, process)
	a := &l.processes[process]
	if a.limits == nil {
		a.limits = make([]seen, len(l.names))
	}
	return a
}

// admitted records what a caller saw.
func (l *ledger) admitted(process, limit int, tokens int64, r tiered.Reason) {
	switch s := &l.of(process).limits[limit]; r {
	case tiered.Granted:
		s.granted += tokens
	case tiered.Shared, tiered.Open:
		s.alone += tokens
	}
}

func (l *ledger) grant(process int, tokens int64) {
	l.seesGrants = true
	l.granted += tokens
	l.of(process).redis += tokens
}

// sample takes over what a process' Stats say.
func (l *ledger) sample(at time.Duration, process int, s *tiered.Stats, last bool) {
	a := l.of(process)
	if a.complete {
		return
	}
	t, held := tally{evictions: int64(s.Evictions)}, int64(0)
	for i, name := range l.names {
		p := s.Policies[name]
		t[heard] += p.Granted
		t[burnt] += p.Burnt
		t[settled] += p.Settled
		held += p.Held
		t[unaccounted] += max(0, p.Spent+p.Returned+p.Burnt+p.Held-p.Granted)
		if last {
			t[unaccounted] += max(0, a.limits[i].granted-p.Spent-p.Standing)
			t[unaccounted] += max(0, a.limits[i].alone-p.Shared-p.Open)
		}
	}
	for _, n := range s.Nodes {
		t[lateCalls] += n.LateCalls
		t[staleReplies] += n.StaleReplies
		t[stateLosses] += n.StateLosses
	}
	if last && l.seesGrants {
		t[ungranted] = max(0, t[heard]-a.redis)
		t[unaccounted] += t[ungranted]
	}
	for i := range t {
		l.add(at, i, t[i]-a.tally[i])
	}
	a.tally, a.held, a.complete = t, held, last
	l.known = l.known || last
}

// died burns what a process held.
func (l *ledger) died(at time.Duration, process int) {
	a := l.of(process)
	l.add(at, burnt, a.held)
	a.held, a.complete = 0, true
}

// joined begins the account of a new process.
func (l *ledger) joined(process int) {
	l.processes = grow(l.processes, process)
	l.processes[process] = account{}
}

// add counts what a sample said in the windows of the time before it. What is wrong during the warm-up counts in the
// windows that begin with its end.
func (l *ledger) add(at time.Duration, field int, n int64) {
	l.whole[field] += n
	at -= l.late + 1
	for _, w := range l.windows {
		if w.has(at) || field == unaccounted && w.seen == 0 && at < w.from {
			w.stats[field] += n
		}
	}
}

// lost is what Redis granted in the run and no process heard of. What was heard of without having been granted is no
// answer to it.
func (l *ledger) lost() int64 { return max(0, l.granted-l.whole[heard]+l.whole[ungranted]) }
