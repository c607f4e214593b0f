package faults_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fleet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

const (
	// pauses of a Redis, one each pausePeriod.
	pauses      = 10
	pausePeriod = 2 * time.Second

	manyKeys = "many-keys"
)

// pauseRows are a server that stands still for a moment, again and again, as while it forks or runs
// a slow script. It is slow then, and not gone.
var pauseRows = []row{
	pausing(40*time.Millisecond, 0.03, 0.1),
	pausing(120*time.Millisecond, 0.08, 0.1),
	pausing(250*time.Millisecond, 0.16, 1),
}

// pausing is a row of pauses: the part of the decisions that the fail mode may make, and of the
// pauses in which a breaker may open.
func pausing(length time.Duration, byMode, openings float64) row {
	var away time.Duration
	return row{
		name: fmt.Sprintf("pauses of %v", length), breakers: may, passes: true,
		job: func(_ *faultRun, job *fleet.Job) {
			// Each request is a round trip, so many calls are under way when Redis stands still.
			job.Loads = append(job.Loads, fleet.Load{
				Policy: tiered.Policy{Name: manyKeys, FailMode: tiered.FailLocal, Limit: tiered.PerMinute(100).WithBurst(200)},
				Keys:   2000, Offer: 600. / processes,
			})
		},
		begin: func(*faultRun) { away = 0 },
		end: func(s *faultRun) {
			for i := range pauses {
				time.Sleep(time.Until(time.Unix(0, s.down).Add(time.Duration(i)*pausePeriod + pausePeriod/4)))
				from := time.Now()
				s.server.Pause()
				time.Sleep(length)
				s.server.Resume()
				away += time.Since(from)
			}
			time.Sleep(pausePeriod * 3 / 4)
		},
		check: func(s *faultRun) { s.judgePauses(away, length, byMode, openings) },
	}
}

// judgePauses: the fail mode decides over little more than the pauses are of the time, and breakers
// hardly open. The machine's part is what the pauses were longer, away in all, and what processes
// that were held up made of them.
func (s *faultRun) judgePauses(away, length time.Duration, byMode, openings float64) {
	opened, held, excused := 0, 0, int64(0) // those that a hold-up may have opened, and for how long, in ns
	for _, r := range s.reports {
		from, lagged := int64(0), false // since when it is not closed
		for _, e := range r.States {
			switch {
			case e.At < s.down || e.At >= s.back:
			case e.To == "open" && from == 0:
				if from, lagged = e.At, heldUp(r, e.At); lagged {
					held++
				} else {
					opened++
				}
			case e.To == "closed" && from > 0:
				if lagged && openings < 1 { // or it may open anyway
					excused += e.At - from
				}
				from = 0
			}
		}
	}
	chances, lasted := pauses*len(s.reports), float64(s.back-s.down)
	most := byMode*float64(away)/float64(pauses*length) + s.held(defaults.Budget/2, s.down, s.back) +
		float64(excused)/lasted/float64(max(1, len(s.reports)))
	if float64(opened) > openings*float64(chances) {
		s.complain("a breaker opened %d times in %d pauses of a process, want %.0f %% at most", opened, chances, 100*openings)
	}
	var parts []string
	for _, j := range append(slices.Clip(s.judged), subject{Load: fleet.Load{Policy: tiered.Policy{Name: manyKeys}}}) {
		all, alone := fleet.Within(s.fleet.Records(j.Name), s.down, s.back), 0
		for _, r := range all {
			if slices.Contains(fallback[j.FailMode], r.Reason) {
				alone++
			}
		}
		part := float64(alone) / float64(max(1, len(all)))
		parts = append(parts, fmt.Sprintf("%s %.1f %%", j.Name, 100*part))
		switch {
		case alone == 0:
			s.complain("no decision of %s was made by the fail mode: this shows nothing", j.Name)
		case part > most:
			s.complain("%.1f %% of the decisions of %s were made by the fail mode, want %.1f %% at most", 100*part, j.Name, 100*most)
		}
	}
	s.note = fmt.Sprintf("Redis stood still for %.1f %% of the time; the fail mode decided over %s (want %.1f %% at most); "+
		"a breaker opened %d times in %d pauses of a process, and %d times after the process was held up",
		100*float64(away)/lasted, strings.Join(parts, ", "), 100*most, opened, chances, held)
}

// heldUp reports whether a process was held up for so long, before a time, that a pause of 120 ms
// may have seemed to last for three calls.
func heldUp(r fleet.Report, at int64) bool {
	var held time.Duration
	for _, l := range r.Lags {
		if l.At < at && l.At > at-int64(pausePeriod/8) && l.Over > int64(time.Millisecond) {
			held += time.Duration(l.Over)
		}
	}
	return held > 20*time.Millisecond
}
