package measure

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// fleetMeter measures the processes, their breakers and the faults.
type fleetMeter struct {
	scenario  *scenario.Scenario
	measured  time.Duration // from when on
	series    *series
	processes []process
	faults    []fault

	alive, broken int // processes, and those of them whose breaker is not closed
	joins         int
	on            int           // faults that are on
	until         time.Duration // up to which the shares of open breakers are measured

	opened, closed, failed, died int64 // of the measured part
}

// process is one process, seen from outside.
type process struct {
	known, alive bool
	joined       time.Duration
	state        string
}

// fault is when a fault was, and how the breakers reacted.
type fault struct {
	begun, ended bool
	began, end   time.Duration
	saw          []bool        // by process: its first opening has been
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

func newFleetMeter(s *scenario.Scenario, measured time.Duration, sr *series) fleetMeter {
	return fleetMeter{
		scenario: s, measured: measured, series: sr, faults: make([]fault, len(s.Faults)),
	}
}

// reach applies the present share of open breakers up to a time.
func (f *fleetMeter) reach(at time.Duration) {
	at = max(at, f.until)
	ratio := 0.0
	if f.alive > 0 {
		ratio = float64(f.broken) / float64(f.alive)
	}
	for i := f.series.step(f.until); i <= f.series.step(at); i++ {
		s := &f.series.steps[i]
		s.open = max(s.open, ratio)
	}
	f.until = at
}

// upTo is reach without the instant itself, which belongs to what comes next. It returns the time, which does not go
// back.
func (f *fleetMeter) upTo(at time.Duration) time.Duration {
	if at > f.until {
		f.reach(at - 1)
		f.until = at
	}
	return f.until
}

// process returns a process. If nobody reported when it joined, it was there from the beginning.
func (f *fleetMeter) process(i int) *process {
	f.processes = grow(f.processes, i)
	if p := &f.processes[i]; !p.known {
		f.join(f.until, i)
		p.joined = 0
	}
	return &f.processes[i]
}

func (f *fleetMeter) join(at time.Duration, i int) {
	f.processes = grow(f.processes, i)
	p := &f.processes[i]
	if p.alive {
		f.die(at, i)
	}
	at = f.upTo(at)
	f.joins++
	f.alive++
	p.known, p.alive, p.joined, p.state = true, true, at, closed
	f.reach(at)
}

func (f *fleetMeter) die(at time.Duration, i int) {
	p := f.process(i)
	if !p.alive {
		return
	}
	at = f.upTo(at)
	f.alive--
	if p.alive = false; p.state != closed {
		f.broken--
		f.allClosed(at)
	}
	if at < time.Duration(f.scenario.Length) && at >= f.measured {
		f.died++
	}
	f.reach(at)
}

// change records a change of a breaker.
func (f *fleetMeter) change(at time.Duration, i int, state string) {
	p := f.process(i)
	if p.state == state || !p.alive {
		return
	}
	at = f.upTo(at)
	was := p.state
	p.state = state
	switch {
	case was == closed:
		f.broken++
		f.openings(at, i, p)
	case state == closed:
		f.broken--
		f.allClosed(at)
	}
	if at >= f.measured {
		switch {
		case was == closed:
			f.opened++
		case state == closed:
			f.closed++
		case was == probing:
			f.failed++
		}
	}
	f.reach(at)
}

// openings records for the faults that a breaker opened.
func (f *fleetMeter) openings(at time.Duration, i int, p *process) {
	for n := range f.faults {
		e := &f.faults[n]
		if !e.begun || e.ended && at > e.end+grace {
			continue
		}
		e.saw = grow(e.saw, i)
		if !e.saw[i] {
			e.saw[i] = true
			e.detect = max(e.detect, at-max(e.began, p.joined))
		}
		e.worth, e.heal = true, -1
	}
}

// allClosed records for the faults that have ended that all breakers are closed, if they are.
func (f *fleetMeter) allClosed(at time.Duration) {
	if f.broken > 0 {
		return
	}
	for n := range f.faults {
		if e := &f.faults[n]; e.ended && e.heal < 0 {
			e.heal = max(at, e.end)
		}
	}
}

// fault records the beginning or the end of a fault.
func (f *fleetMeter) fault(at time.Duration, i int, ended bool) {
	at = f.upTo(at)
	e := &f.faults[i]
	if !e.begun {
		e.begun, e.began, e.detect, e.heal = true, at, -1, -1
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

// detected returns the longest time that a fault which began in a part went undetected, −1 if none was detected.
func (f *fleetMeter) detected(w *window) time.Duration {
	most := time.Duration(-1)
	for i := range f.faults {
		if e := &f.faults[i]; e.begun && e.began >= w.from && e.began < w.to {
			most = max(most, e.detect)
		}
	}
	return most
}

// healed returns the longest time that a fault which ended in a part took to heal: −1 if one has not, or none had to.
func (f *fleetMeter) healed(w *window) time.Duration {
	most := time.Duration(-1)
	for i := range f.faults {
		e := &f.faults[i]
		if !e.ended || e.end < w.from || e.end >= w.to || e.covered || !e.worth {
			continue
		}
		if e.heal < 0 {
			return -1
		}
		most = max(most, e.heal-e.end)
	}
	return most
}

// spans returns when the faults were, or would have been.
func (f *fleetMeter) spans(end time.Duration) []FaultSpan {
	all := make([]FaultSpan, 0, len(f.faults))
	for i := range f.faults {
		s, e := &f.scenario.Faults[i], &f.faults[i]
		from, to := time.Duration(s.At), faultEnd(f.scenario, s)
		if e.begun {
			from, to = e.began, max(to, e.began)
		}
		if e.ended && scenario.Lasts(s.Kind) {
			to = e.end
		} else if e.ended {
			to = max(to, e.end)
		}
		all = append(all, FaultSpan{
			Text: "at " + s.At.String() + " " + s.String(), FromS: min(from, end).Seconds(), ToS: min(to, end).Seconds(),
		})
	}
	return all
}
