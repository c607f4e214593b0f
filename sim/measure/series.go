package measure

import "time"

// maxSteps is how many steps a series has at most: enough for the width of a screen.
const maxSteps = 600

// series is what happened over time.
type series struct {
	length time.Duration // of a step
	steps  []step

	// The shares of the processes in the present step and the one before it, by the parity of the step.
	shares [2][]share
	now    int // the present step
}

// step is what happened in a part of the time.
type step struct {
	offered, admitted, ideal, alone, calls int64
	limit, open, jain                      float64
	longest                                time.Duration // −1: no decision
}

// stepLength is the least of 100, 200, 500 ms, 1, 2, 5 s, … that cuts a run into at most so many steps.
func stepLength(run time.Duration) time.Duration {
	for unit := 100 * time.Millisecond; ; unit *= 10 {
		for _, n := range []int{1, 2, 5} {
			if step := time.Duration(n) * unit; (run+step-1)/step <= maxSteps {
				return step
			}
		}
	}
}

func newSeries(run time.Duration) series {
	run = max(run, 1)
	s := series{length: stepLength(run)}
	s.steps = make([]step, (run+s.length-1)/s.length)
	for i := range s.steps {
		s.steps[i].longest, s.steps[i].jain = -1, -1
	}
	return s
}

// step returns the number of the step of a time. What comes after the end belongs to the last.
func (s *series) step(at time.Duration) int { return min(int(max(at, 0)/s.length), len(s.steps)-1) }

// ending returns the step that ends at about a time.
func (s *series) ending(at time.Duration) int { return s.step(at - s.length/8 - 1) }

// edge returns the number of steps that have ended at about a time.
func (s *series) edge(at time.Duration) int {
	if at >= s.length*time.Duration(len(s.steps)) {
		return len(s.steps)
	}
	return int((at + s.length/2) / s.length)
}

// share returns that of a process in the present step or a new one.
func (s *series) share(step, process int) *share {
	for s.now < step {
		s.now++
		s.close(s.now - 2)
		clear(s.shares[s.now%2])
	}
	p := &s.shares[step%2]
	*p = grow(*p, process)
	return &(*p)[process]
}

// recent returns the share of a process in a step that is not closed, nil for an earlier one: such late decisions
// are too few to matter.
func (s *series) recent(step, process int) *share {
	if step < s.now-1 {
		return nil
	}
	return s.share(step, process)
}

// close computes the fairness of a step.
func (s *series) close(step int) {
	if step >= 0 {
		s.steps[step].jain = jain(s.shares[step%2])
	}
}
