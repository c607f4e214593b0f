package measure

import (
	"fmt"
	"time"
)

// strip is the states of a breaker over time. A probe that fails within half a step of the series is left out: nobody
// would see it.
type strip struct{ changes []stateAt }

type stateAt struct {
	at    time.Duration
	state string
}

func (s *strip) add(at time.Duration, state string, step time.Duration) {
	n := len(s.changes)
	if n >= 2 {
		last, before := s.changes[n-1], s.changes[n-2]
		if last.state == probing && before.state == state && at-last.at < step/2 {
			s.changes = s.changes[:n-1]
			return
		}
	}
	if n > 0 && s.changes[n-1].state == state {
		return
	}
	s.changes = append(s.changes, stateAt{at, state})
}

// maxStrips is the number of processes in a picture.
const maxStrips = 100

// strips returns those of up to 100 processes, evenly over all, so that any part of the fleet has its part of them.
func (f *fleetMeter) strips() []BreakerStrip {
	var known []int
	for i := range f.processes {
		if f.processes[i].known {
			known = append(known, i)
		}
	}
	n := min(len(known), maxStrips)
	all := make([]BreakerStrip, 0, n)
	for i := range n {
		at := known[i*len(known)/n]
		b := BreakerStrip{Process: fmt.Sprint(at), Changes: []BreakerChange{}}
		for _, c := range f.processes[at].strip.changes {
			b.Changes = append(b.Changes, BreakerChange{AtS: seconds(c.at), State: c.state})
		}
		all = append(all, b)
	}
	return all
}
