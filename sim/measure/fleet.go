package measure

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// fleetMeter measures the processes, their breakers and the faults.
type fleetMeter struct {
	scenario  *scenario.Scenario
	parts     *parts
	series    *series
	processes []process
	faults    []fault

	alive, broken int // processes, and those of them whose breaker is not closed
	joins         int
	on            int           // faults that are on
	until         time.Duration // up to which the shares of open breakers are measured

	segments []segment
	recent   sliding // calls

	opened, closed, failed, died int64 // of the measured part
}

// process is one process, as far as it can be seen from outside.
type process struct {
	known, alive bool
	joined       time.Duration
	state        string
	strip        strip
}

// segment is what is measured of the fleet in a segment.
type segment struct {
	calls   int64
	open    float64 // the greatest share of breakers that were not closed
	probes  int
	changes []int // by process
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
	gone    = "gone"
)

func newFleetMeter(s *scenario.Scenario, p *parts, sr *series) fleetMeter {
	return fleetMeter{
		scenario: s, parts: p, series: sr, faults: make([]fault, len(s.Faults)),
		segments: make([]segment, len(p.edges)+1),
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
	for i := f.parts.segment(f.until); i <= f.parts.segment(at); i++ {
		f.segments[i].open = max(f.segments[i].open, ratio)
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
	p.strip.add(at, closed, f.series.length)
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
	if at < time.Duration(f.scenario.Length) && at >= f.parts.whole.from {
		f.died++
	}
	p.strip.add(at, gone, f.series.length)
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
	p.strip.add(at, state, f.series.length)
	seg := f.parts.segment(at)
	switch {
	case was == closed:
		f.broken++
		f.openings(at, i, p)
	case state == closed:
		f.broken--
		f.allClosed(at)
	}
	if was == closed || state == closed {
		c := &f.segments[seg].changes
		*c = grow(*c, i)
		(*c)[i]++
	}
	if seg > 0 {
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

// called counts calls. Those while breakers close again are probes, or come with them.
func (f *fleetMeter) called(at time.Duration, n int) {
	seg := &f.segments[f.parts.segment(at)]
	seg.calls += int64(n)
	if f.on > 0 || f.broken == 0 {
		f.recent.reset()
		return
	}
	seg.probes = max(seg.probes, f.recent.add(at, n))
}

// sliding counts events of the last 100 ms, by milliseconds.
type sliding struct {
	counts [100]int
	last   int64 // ms
	sum    int
}

func (s *sliding) reset() {
	if s.sum > 0 {
		*s = sliding{last: s.last}
	}
}

// add counts n more at a time that does not go back, and returns the sum.
func (s *sliding) add(at time.Duration, n int) int {
	ms := max(at.Milliseconds(), s.last)
	if ms-s.last >= int64(len(s.counts)) {
		s.reset()
		s.last = ms
	}
	for s.last < ms {
		s.last++
		c := &s.counts[s.last%int64(len(s.counts))]
		s.sum -= *c
		*c = 0
	}
	s.counts[ms%int64(len(s.counts))] += n
	s.sum += n
	return s.sum
}
