package measure

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// process is one process, seen from outside.
type process struct {
	alive  bool
	joined time.Duration
	state  string // of its breaker

	counts map[string]int64 // happenings by its last Stats
	held   int64            // by its last Stats
	redis  int64            // tokens that Redis granted to it
	limits []seen
}

// fault is when a fault was, and how the breakers reacted.
type fault struct {
	begun, ended bool
	began, end   time.Duration
	saw          map[int]bool  // processes whose first opening has been
	detect       time.Duration // −1: not yet
	heal         time.Duration // when all breakers were closed; −1: not yet
	covered      bool          // another fault was on when it ended
	worth        bool          // a breaker had opened
}

// grace is how long after the end of a fault its last timeouts still open breakers.
const grace = time.Second

const (
	closed  = "closed"
	probing = "probing"
)

// reach moves on to a time.
func (m *Meter) reach(at time.Duration) {
	for i := m.series.step(m.now) + 1; i <= m.series.step(at); i++ {
		m.mark(i)
	}
	m.now = at
}

// mark records the present share of open breakers.
func (m *Meter) mark(step int) {
	s := &m.series.steps[step]
	s.open = max(s.open, float64(m.broken)/float64(max(m.alive, 1)))
}

// process returns a process, and makes room for it.
func (m *Meter) process(i int) *process {
	m.processes = grow(m.processes, i)
	p := &m.processes[i]
	if p.limits == nil {
		p.limits = make([]seen, len(m.scenario.Limits))
	}
	return p
}

// Joined records a new process, with a number of its own.
func (m *Meter) Joined(at time.Duration, process int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reach(at)
	p := m.process(process)
	p.alive, p.joined, p.state = true, at, closed
	m.joins++
	m.alive++
}

// Died records that a process ended. What it held by its last sample is burnt.
func (m *Meter) Died(at time.Duration, process int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reach(at)
	p := m.process(process)
	m.alive--
	if p.alive = false; p.state != closed {
		m.broken--
		m.allClosed(at)
	}
	m.count(at, "process_died", 1)
	m.allEnd(at, process)
	m.count(at, "lease_burnt", p.held)
	m.mark(m.series.step(at))
}

// Breaker records a change of a living process' breaker: "closed", "open", "probing". It begins
// with a closed one.
func (m *Meter) Breaker(at time.Duration, process int, state string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trace += stable.Mix(stable.Mix(uint64(at)) ^ stable.Mix(uint64(process)<<32) ^ stable.Hash(state))
	p := m.process(process)
	was := p.state
	if was == state || !p.alive {
		return
	}
	m.reach(at)
	p.state = state
	switch {
	case was == closed:
		m.count(at, "breaker_open", 1)
		m.broken++
		m.openings(at, process, p)
	case state == closed:
		m.count(at, "breaker_closed", 1)
		m.broken--
		m.allClosed(at)
	case was == probing:
		m.count(at, "probe_failed", 1)
	}
	m.mark(m.series.step(at))
}

// openings records for the faults that a breaker opened.
func (m *Meter) openings(at time.Duration, i int, p *process) {
	for n := range m.faults {
		e := &m.faults[n]
		if !e.begun || e.ended && at > e.end+grace {
			continue
		}
		if !e.saw[i] {
			e.saw[i] = true
			e.detect = max(e.detect, at-max(e.began, p.joined))
		}
		e.worth, e.heal = true, -1
	}
}

// allClosed records for the faults that have ended that all breakers are closed, if they are.
func (m *Meter) allClosed(at time.Duration) {
	for n := range m.faults {
		if e := &m.faults[n]; m.broken == 0 && e.ended && e.heal < 0 {
			e.heal = max(at, e.end)
		}
	}
}

// Fault records that fault number i of the scenario began or ended. A fault of a kind that does not
// last ends when it begins, unless a later end is recorded.
func (m *Meter) Fault(at time.Duration, i int, ended bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reach(at)
	e := &m.faults[i]
	if !e.begun {
		*e = fault{begun: true, began: at, saw: map[int]bool{}, detect: -1, heal: -1}
		m.on++
	}
	if !ended && scenario.Lasts(m.scenario.Faults[i].Kind) {
		return
	}
	if !e.ended {
		e.ended = true
		m.on--
	}
	e.end, e.heal = at, -1
	e.covered = m.on > 0
	e.worth = e.worth || m.broken > 0
	m.allClosed(at)
}

// reaction returns how long it took at most to detect the faults that began in a window, and to
// heal from those that ended in it. detect is −1 if none was detected. heal is −1 if one has not
// healed, or if none had to.
func (m *Meter) reaction(w *window) (detect, heal time.Duration) {
	detect, heal = -1, -1
	ill := false
	for i := range m.faults {
		e := &m.faults[i]
		if e.begun && w.has(e.began) {
			detect = max(detect, e.detect)
		}
		if e.ended && w.has(e.end) && !e.covered && e.worth {
			heal = max(heal, e.heal-e.end)
			ill = ill || e.heal < 0
		}
	}
	if ill {
		heal = -1
	}
	return detect, heal
}

// seen is the tokens of a limit that callers saw admitted.
type seen struct{ granted, alone int64 }

// Sample records the Stats of a process. It is called at the end of each step of the series, and
// with last when the process or the run ends. Then the process is compared with what callers and
// Redis saw. A sample counts for the step that it ends, up to an eighth of a step late.
func (m *Meter) Sample(at time.Duration, process int, s tiered.Stats, last bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at -= m.Step()/8 + 1
	a := m.process(process)
	counts, held, heard, wrong := map[string]int64{"evicted_locally": int64(s.Evictions)}, int64(0), int64(0), int64(0)
	for i := range m.scenario.Limits {
		p := s.Policies[m.scenario.Limits[i].Name]
		counts["lease_burnt"] += p.Leases.Burnt
		counts["debt_settled"] += p.Costs.Settled
		heard += p.Leases.Granted
		held += p.Leases.Held
		wrong += max(0, p.Leases.Spent+p.Leases.Returned+p.Leases.Burnt+p.Leases.Held-p.Leases.Granted)
		wrong += max(0, a.limits[i].granted-p.Leases.Spent-p.Standing.Spent)
		wrong += max(0, a.limits[i].alone-p.Tokens.Fallback-p.Tokens.Open)
	}
	for _, n := range s.Nodes {
		counts["state_loss"] += n.Faults.StateLosses
	}
	for name, n := range counts {
		m.count(at, name, n-a.counts[name])
	}
	a.counts, a.held = counts, held
	if last {
		ungranted := max(0, heard-a.redis)
		m.heard += heard
		m.ungranted += ungranted
		m.unaccounted += wrong + ungranted
	}
}

// lost returns the tokens that Redis granted in the run and that no process heard of. Tokens that
// processes heard of and that were not granted do not make up for them.
func (m *Meter) lost() int64 { return max(0, m.granted-m.heard+m.ungranted) }
