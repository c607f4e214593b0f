package sim

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// healthy is evidence that keeps every promise of every mode.
func healthy(mode tiered.FailMode) evidence {
	return evidence{
		mode: mode, processes: 20, fleet: 20, limit: tiered.PerSecond(1000).WithBurst(500), budget: 20 * time.Millisecond,
		outage: 15 * time.Second, longest: 20 * time.Millisecond,
	}
}

var allModes = []tiered.FailMode{tiered.FailLocal, tiered.FailOpen, tiered.FailClosed}

func TestChecksPass(t *testing.T) {
	for _, m := range allModes {
		e := healthy(m)
		r := Report{Scenario: Outage(), Modes: []ModeReport{{Mode: m, Checks: e.checks()}}}
		if !r.Passed() || strings.Contains(r.String(), "FAIL") || !strings.Contains(r.String(), "PASS: ") {
			t.Errorf("%v: %v", m, &r)
		}
	}
}

// Each promise is broken, as little as can be: a check that cannot fail checks nothing.
func TestChecksFail(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*evidence)
		fails []tiered.FailMode
	}{
		{"a token over, in a run", func(e *evidence) { e.whole = 1 }, []tiered.FailMode{tiered.FailClosed}},
		{"a hundredth of a token", func(e *evidence) { e.whole = 0.01 }, []tiered.FailMode{tiered.FailClosed}},
		{"what a clock of whole µs makes", func(e *evidence) { e.whole, e.later = 0.002, 0.002 }, nil},
		{"a burst over, in an outage", func(e *evidence) { e.alone = 500 }, nil},
		{"a burst and a token", func(e *evidence) { e.alone = 501 }, []tiered.FailMode{tiered.FailLocal}},
		{"half a burst more, in the recovery", func(e *evidence) { e.recovering = 750 }, nil},
		{"and a token", func(e *evidence) { e.recovering = 751 }, []tiered.FailMode{tiered.FailLocal}},
		{"a token over, long after it", func(e *evidence) { e.later = 1 }, []tiered.FailMode{tiered.FailLocal}},
		{"no time after it", func(e *evidence) { e.later = math.NaN() }, nil},
		{"a token per process, of more processes than tokens", func(e *evidence) { e.processes, e.fleet, e.alone = 600, 600, 600 }, nil},
		{"one too many of those", func(e *evidence) { e.processes, e.fleet, e.alone = 600, 600, 601 }, []tiered.FailMode{tiered.FailLocal}},
		{"half the fleet is known", func(e *evidence) { e.fleet, e.alone = 10, 500+15_000 }, nil},
		{"and a token", func(e *evidence) { e.fleet, e.alone = 10, 500+15_001 }, []tiered.FailMode{tiered.FailLocal}},
		{"an admission that is not counted", func(e *evidence) { e.uncounted = 1 }, allModes},
		{"a decision that takes too long", func(e *evidence) { e.longest++ }, allModes},
	} {
		for _, m := range allModes {
			e := healthy(m)
			c.spoil(&e)
			r := Report{Scenario: Outage(), Modes: []ModeReport{{Mode: m, Checks: e.checks()}}}
			if want := !slices.Contains(c.fails, m); r.Passed() != want || strings.Contains(r.String(), "\nFAIL") == want {
				t.Errorf("%s: %v passed: %t, want %t", c.name, m, r.Passed(), want)
			}
		}
	}
}

func TestUncounted(t *testing.T) {
	seen := map[tiered.Reason]int64{tiered.Granted: 10, tiered.Shared: 5, tiered.Open: 3, tiered.Limited: 99}
	books := tiered.PolicyStats{Granted: 17, Spent: 10, Returned: 4, Burnt: 2, Held: 1, Shared: 5, Open: 3}
	if n := uncounted(seen, books); n != 0 {
		t.Errorf("%d, want none", n)
	}
	for name, spoil := range map[string]func(*tiered.PolicyStats){
		"spent":  func(s *tiered.PolicyStats) { s.Spent--; s.Held++ },
		"shared": func(s *tiered.PolicyStats) { s.Shared-- },
		"open":   func(s *tiered.PolicyStats) { s.Open++ },
		"books":  func(s *tiered.PolicyStats) { s.Burnt++ },
	} {
		s := books
		spoil(&s)
		if n := uncounted(seen, s); n != 1 {
			t.Errorf("%s: %d, want 1", name, n)
		}
	}
}
