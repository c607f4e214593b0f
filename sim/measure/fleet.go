package measure

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// fleetMeter measures the processes, their breakers and the faults.
type fleetMeter struct {
	scenario  *scenario.Scenario
	count     counter
	series    *series
	processes []process
	faults    []fault
	now       time.Duration // the latest

	alive, broken int // processes, and those of them whose breaker is not closed
	joins, on     int // processes that joined, faults that are on
}

// process is one process, seen from outside.
type process struct {
	alive  bool
	joined time.Duration
	state  string // of its breaker
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
func (f *fleetMeter) reach(at time.Duration) {
	for i := f.series.step(f.now) + 1; i <= f.series.step(at); i++ {
		f.mark(i)
	}
	f.now = at
}

// mark records the present share of open breakers.
func (f *fleetMeter) mark(step int) {
	s := &f.series.steps[step]
	s.open = max(s.open, float64(f.broken)/float64(max(f.alive, 1)))
}

func (f *fleetMeter) join(at time.Duration, i int) {
	f.reach(at)
	f.joins++
	f.alive++
	f.processes = grow(f.processes, i)
	f.processes[i] = process{alive: true, joined: at, state: closed}
}

func (f *fleetMeter) die(at time.Duration, i int) {
	f.reach(at)
	p := &f.processes[i]
	f.alive--
	if p.alive = false; p.state != closed {
		f.broken--
		f.allClosed(at)
	}
	f.count(at, "process_died", 1)
	f.mark(f.series.step(at))
}

// change records a change of a breaker.
func (f *fleetMeter) change(at time.Duration, i int, state string) {
	p := &f.processes[i]
	was := p.state
	if was == state || !p.alive {
		return
	}
	f.reach(at)
	p.state = state
	switch {
	case was == closed:
		f.count(at, "breaker_open", 1)
		f.broken++
		f.openings(at, i, p)
	case state == closed:
		f.count(at, "breaker_closed", 1)
		f.broken--
		f.allClosed(at)
	case was == probing:
		f.count(at, "probe_failed", 1)
	}
	f.mark(f.series.step(at))
}

// openings records for the faults that a breaker opened.
func (f *fleetMeter) openings(at time.Duration, i int, p *process) {
	for n := range f.faults {
		e := &f.faults[n]
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
func (f *fleetMeter) allClosed(at time.Duration) {
	for n := range f.faults {
		if e := &f.faults[n]; f.broken == 0 && e.ended && e.heal < 0 {
			e.heal = max(at, e.end)
		}
	}
}

// fault records the beginning or the end of a fault.
func (f *fleetMeter) fault(at time.Duration, i int, ended bool) {
	f.reach(at)
	e := &f.faults[i]
	if !e.begun {
		*e = fault{begun: true, began: at, saw: map[int]bool{}, detect: -1, heal: -1}
		f.on++
	}
	if !ended && scenario.Lasts(f.scenario.Faults[i].Kind) {
		return
	}
	if !e.ended {
		e.ended = true
		f.on--
	}
	e.end, e.heal = at, -1
	e.covered = f.on > 0
	e.worth = e.worth || f.broken > 0
	f.allClosed(at)
}

// reaction returns the longest times that faults which began in a window went undetected, and that faults which ended in
// it took to heal: −1 if none was detected, and if one has not healed or none had to.
func (f *fleetMeter) reaction(w *window) (detect, heal time.Duration) {
	detect, heal = -1, -1
	ill := false
	for i := range f.faults {
		e := &f.faults[i]
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
