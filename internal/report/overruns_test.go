package report_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
)

// Who is late: Redis, if an answer took longer than a caller waits, and the callers themselves woke
// up in time.
func TestWhoIsLate(t *testing.T) {
	const ms, wait = time.Millisecond, 20 * time.Millisecond
	for name, test := range map[string]struct {
		longest time.Duration // that an answer took
		late    []time.Duration
		waited  time.Duration // by the last of them; 0 for as long as the others
		process bool
	}{
		"answers take long":                                  {longest: 25 * ms, late: []time.Duration{0, ms, 2 * ms}},
		"no answer for a moment":                             {longest: 50 * ms, late: []time.Duration{ms, ms, ms, 12 * ms}},
		"answers are in time, and calls waited here":         {longest: 3 * ms, late: []time.Duration{0, 0, 0}, process: true},
		"answers look slow to a process that is held up":     {longest: 80 * ms, late: []time.Duration{60 * ms, 40 * ms, ms}, process: true},
		"one caller of two was held up":                      {longest: 25 * ms, late: []time.Duration{60 * ms, 0}},
		"a caller with a deadline waits for less than Redis": {longest: 12 * ms, late: []time.Duration{0, 0, 0}, waited: 10 * ms},
	} {
		var w report.InVain
		for i, late := range test.late {
			waited := wait
			if i == len(test.late)-1 && test.waited > 0 {
				waited = test.waited
			}
			w.Add(waited, late)
		}
		if got := w.ByProcess(test.longest); got != test.process {
			t.Errorf("%s: the process is late: %v", name, got)
		}
	}
}
