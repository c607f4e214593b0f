package measure

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// account is what is known of a process.
type account struct {
	counts map[string]int64 // happenings by its last Stats
	held   int64            // by its last Stats
	redis  int64            // tokens that Redis granted to it
	limits []seen
}

// seen is the tokens of a limit that callers saw admitted.
type seen struct{ granted, alone int64 }

// ledger compares what Redis granted, what processes count, and what callers saw.
type ledger struct {
	limits    []scenario.Limit
	count     counter
	processes []account

	granted     int64 // tokens by Redis
	heard       int64 // of these by processes
	ungranted   int64 // that processes heard of and Redis did not grant
	unaccounted int64 // with the ungranted ones
}

func (l *ledger) of(process int) *account {
	l.processes = grow(l.processes, process)
	a := &l.processes[process]
	if a.limits == nil {
		a.limits = make([]seen, len(l.limits))
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
	l.granted += tokens
	l.of(process).redis += tokens
}

// sample takes over what a process' Stats say.
func (l *ledger) sample(at time.Duration, process int, s *tiered.Stats, last bool) {
	a := l.of(process)
	counts, held, heard, wrong := map[string]int64{"evicted_locally": int64(s.Evictions)}, int64(0), int64(0), int64(0)
	for i := range l.limits {
		p := s.Policies[l.limits[i].Name]
		counts["lease_burnt"] += p.Burnt
		counts["debt_settled"] += p.Settled
		heard += p.Granted
		held += p.Held
		wrong += max(0, p.Spent+p.Returned+p.Burnt+p.Held-p.Granted)
		wrong += max(0, a.limits[i].granted-p.Spent-p.Standing)
		wrong += max(0, a.limits[i].alone-p.Shared-p.Open)
	}
	for _, n := range s.Nodes {
		counts["state_loss"] += n.StateLosses
	}
	for name, n := range counts {
		l.count(at, name, n-a.counts[name])
	}
	a.counts, a.held = counts, held
	if last {
		ungranted := max(0, heard-a.redis)
		l.heard += heard
		l.ungranted += ungranted
		l.unaccounted += wrong + ungranted
	}
}

// died burns what a process held.
func (l *ledger) died(at time.Duration, process int) {
	l.count(at, "lease_burnt", l.of(process).held)
}

// lost is what Redis granted in the run and no process heard of. What was heard of without having been granted is no
// answer to it.
func (l *ledger) lost() int64 { return max(0, l.granted-l.heard+l.ungranted) }
