package measure

import "time"

// maxSteps is how many steps a series has at most: enough for the width of a screen.
const maxSteps = 600

// series is what happened over time, by step.
type series struct {
	length time.Duration // of a step

	offered, admitted, ideal, alone, calls []int64
	limit, open, jain                      []float64
	longest                                []time.Duration // −1 is no decision

	// The shares of the processes in the step that is now and the one before it, by the parity of the step.
	shares [2][]share
	now    int // the step
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
	n := int((run + s.length - 1) / s.length)
	for _, p := range []*[]int64{&s.offered, &s.admitted, &s.ideal, &s.alone, &s.calls} {
		*p = make([]int64, n)
	}
	for _, p := range []*[]float64{&s.limit, &s.open, &s.jain} {
		*p = make([]float64, n)
	}
	s.longest = make([]time.Duration, n)
	for i := range n {
		s.longest[i], s.jain[i] = -1, -1
	}
	return s
}

// step is the one of a time; what comes after the end belongs to the last.
func (s *series) step(at time.Duration) int { return min(int(max(at, 0)/s.length), len(s.calls)-1) }

// ending is the step that ends at about a time.
func (s *series) ending(at time.Duration) int { return s.step(at - s.length/8 - 1) }

// edge is the number of steps that have ended at about a time.
func (s *series) edge(at time.Duration) int {
	if at >= s.length*time.Duration(len(s.calls)) {
		return len(s.calls)
	}
	return int((at + s.length/2) / s.length)
}

// share is that of a process in a step, the one that is now or a new one.
func (s *series) share(step, process int) *share {
	for s.now < step {
		s.now++
		s.close(s.now - 2)
		clear(s.shares[s.now%2])
	}
	p := &s.shares[step%2]
	*p = grown(*p, process)
	return &(*p)[process]
}

// recent is the share of a process in a step that is not closed, nil for an earlier one: such late decisions are too few
// to tell.
func (s *series) recent(step, process int) *share {
	if step < s.now-1 {
		return nil
	}
	return s.share(step, process)
}

// close reckons the fairness of a step.
func (s *series) close(step int) {
	if step >= 0 {
		s.jain[step] = jain(s.shares[step%2])
	}
}
