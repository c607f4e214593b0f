package sim_test

import (
	"fmt"
	"strings"
	"testing"
)

// A Redis that stands still for a moment, as while it forks or runs a slow script, is slow and not
// gone: the fail mode decides over about as much as the pauses are of the time, whatever the
// traffic is, and breakers hardly open. Calls under way at one moment all fail in one pause, which
// is one failure.
func TestAPauseIsNoOutage(t *testing.T) {
	const pauses = 4
	for _, load := range []struct {
		name, limit, traffic string
	}{
		{"12 requests a second", "100/min, burst: 200", "rate: 12/s, keys: 2000"},
		{"60 requests a second", "100/min, burst: 200", "rate: 60/s, keys: 2000"},
		{"600 requests a second", "100/min, burst: 200", "rate: 600/s, keys: 2000"},
		{"2400 requests a second", "100/min, burst: 200", "rate: 2400/s, keys: 2000"},
		{"2400 of one key", "4000/s", "rate: 2400/s"},
		{"2400 of 100 keys", "50/s", "rate: 2400/s, keys: 100"},
	} {
		for _, pause := range []struct {
			ms      int
			alone   float64 // part of the requests, at most
			openOne float64 // part of the pauses in which a breaker opens, at most
		}{{40, 0.03, 0}, {120, 0.08, 0.1}, {250, 0.16, 1}} {
			t.Run(fmt.Sprint(load.name, ", ", pause.ms, " ms"), func(t *testing.T) {
				t.Parallel()
				var text strings.Builder
				fmt.Fprintf(&text, "name: pauses\nlimits:\n  - {name: user, rate: %s}\nfleet: {n: 12, mode: local, processes: 12}\n"+
					"traffic:\n  - {shape: poisson, limit: user, %s}\nrun: %ds\nwarmup: 5s\nexpect: [over_admission <= 1]\nfaults:\n",
					load.limit, load.traffic, 6+2*pauses)
				for i := range pauses {
					fmt.Fprintf(&text, "  - {at: %ds, kind: freeze, for: %dms}\n", 6+2*i, pause.ms)
				}
				r := rehearse(t, text.String(), nil)
				alone := float64(r.Metrics.Alone) / float64(r.Metrics.Offered)
				opened := float64(count(r, "breaker_open")) / float64(pauses*r.Scenario.Fleet.N)
				t.Logf("the fail mode decided over %.1f%%; a breaker opened in %.0f%% of the pauses; %.1f calls a second",
					100*alone, 100*opened, r.Metrics.RedisCalls)
				if alone > pause.alone || opened > pause.openOne {
					t.Errorf("the fail mode decided over %.1f%%, a breaker opened in %.0f%% of the pauses; want at most %.0f%% and %.0f%%",
						100*alone, 100*opened, 100*pause.alone, 100*pause.openOne)
				}
			})
		}
	}
}
