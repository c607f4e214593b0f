package measure

import (
	"math"
	"time"
)

// maxSteps is how many steps a series has at most: enough for the width of a screen.
const maxSteps = 600

// series is what happened over time.
type series struct {
	length time.Duration // of a step
	steps  []step
}

// step is what happened in a part of the time.
type step struct {
	offered, admitted, alone, calls int64
	open                            float64       // the largest share of breakers that were not closed
	longest                         time.Duration // decision; −1: none
}

// stepLength is the least of 100, 200, 500 ms, 1, 2, 5 s, … that cuts a run into at most maxSteps steps.
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
	s := series{length: stepLength(run)}
	s.steps = make([]step, (run+s.length-1)/s.length)
	for i := range s.steps {
		s.steps[i].longest = -1
	}
	return s
}

// step returns the number of the step of a time. What comes after the end belongs to the last.
func (s *series) step(at time.Duration) int { return min(int(max(at, 0)/s.length), len(s.steps)-1) }

// at returns the step of a time.
func (s *series) at(at time.Duration) *step { return &s.steps[s.step(at)] }

// report returns the series of a run of that length.
func (s *series) report(run time.Duration) Series {
	r := Series{StepS: s.length.Seconds()}
	for i := range s.steps {
		length := min(s.length, run-s.length*time.Duration(i)).Seconds() // the last step may be cut short
		per := func(tokens int64) float64 { return rounded(float64(tokens) / length) }
		x := &s.steps[i]
		r.Offered = append(r.Offered, per(x.offered))
		r.Admitted = append(r.Admitted, per(x.admitted))
		r.Alone = append(r.Alone, per(x.alone))
		r.Calls = append(r.Calls, per(x.calls))
		r.MaxUs = append(r.MaxUs, rounded(max(-1, float64(x.longest)/float64(time.Microsecond))))
		r.Open = append(r.Open, rounded(x.open))
	}
	return r
}

// rounded rounds to four digits after the point. A picture shows no more, and a report is half as long.
func rounded(x float64) float64 { return math.Round(x*1e4) / 1e4 }
