package sim

import (
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// rareKeys is 2000 users of whom each is far below the limit. The table of fractions is in quarantine for 65 s.
const rareKeys = `name: many rarely used keys
limits:
  - {name: users, rate: 100/s, burst: 200}
fleet: {n: 4, standing: on}
traffic:
  - {shape: poisson, limit: users, rate: 150/s, keys: 2000}
run: 100s
warmup: 85s
`

// With standing shares rarely used keys need no Redis.
func TestRehearsalOfStandingShares(t *testing.T) {
	for _, row := range []struct {
		standing string
		calls    float64 // per token, at most
	}{
		{"on", 0.01},
		{"split", 1},
		{"off", 1},
	} {
		text := strings.Replace(rareKeys, "standing: on", "standing: "+row.standing, 1)
		r := rehearse(t, text, &Options{Seed: 20})
		m, calls := r.Metrics, perToken(r)
		if m.OverAdmission > 0 || m.Utilisation < 1 || m.Unaccounted != 0 || calls > row.calls || calls < row.calls-0.02 {
			t.Errorf("standing %s: %.2f calls per token, %+v", row.standing, calls, m)
		}
	}
}

// perToken is how many calls of Redis a run took for a token that it admitted, after the warm-up.
func perToken(r *measure.Report) float64 {
	measured := r.Phases[len(r.Phases)-1].ToS - r.Phases[0].FromS
	return r.Metrics.RedisCalls * measured / float64(r.Metrics.Admitted)
}

// badHour is all that can go wrong, while 20 keys are asked for around their limit, and the fleet changes.
const badHour = `name: standing shares in a bad hour
limits:
  - {name: users, rate: 20/s, burst: 48}
fleet: {n: 4, standing: on, mode: closed}
traffic:
  - {shape: poisson, limit: users, rate: 200/s, keys: 10}
  - {shape: bursts, limit: users, rate: 100/s, every: 10s, for: 1s, keys: 10, cost: 1, maxcost: 4}
net: {rtt: 1ms, jitter: 200us}
faults:
  - {at: 75s, kind: lose, for: 5s, chance: 20%}
  - {at: 80s, kind: blackhole, only: replies, for: 8s}
  - {at: 90s, kind: freeze, for: 3s}
  - {at: 95s, kind: scale, n: 7}
  - {at: 110s, kind: crash, procs: 3}
  - {at: 115s, kind: refuse, for: 10s, error: LOADING}
  - {at: 130s, kind: scale, n: 3}
  - {at: 140s, kind: scriptflush}
  - {at: 145s, kind: refuse, for: 70s, error: LOADING}
  - {at: 220s, kind: deploy, every: 2s}
run: 240s
warmup: 70s
`

// surges ask for more of 10 keys than two limits allow: at once more than the first, and on average more than the second.
const surges = `name: surges over two limits
limits:
  - {name: users, rate: 20/s, burst: 48}
fleet: {n: 4, standing: on}
traffic:
  - {shape: bursts, limit: users, rate: 150/s, every: 10s, for: 1s, keys: 10}
run: 240s
warmup: 70s
`

// Standing shares keep a limit, and each of two on a key, whatever happens to messages and processes. A report is of
// the first one.
func TestStandingSharesKeepTheirLimits(t *testing.T) {
	fast, slow := tiered.PerSecond(20).WithBurst(48), tiered.PerMinute(600).WithBurst(400)
	type row struct {
		text   string
		limits []tiered.Limit
	}
	rows := []row{{badHour, []tiered.Limit{fast}}, {badHour, []tiered.Limit{fast}}}
	for _, text := range []string{surges, badHour, rareKeys} {
		rows = append(rows, row{text, []tiered.Limit{fast, slow}}, row{text, []tiered.Limit{slow, fast}})
	}
	if !testing.Short() {
		rows = append(rows, rows[0], rows[0], rows[0])
	}
	for i, row := range rows {
		p := tiered.Policy{Limit: row.limits[0], Also: row.limits[1:], Standing: tiered.StandingOn}
		if row.text == badHour {
			p.FailMode = tiered.FailClosed
		}
		r := rehearse(t, row.text, &Options{Seed: uint64(i) + 1, Policies: []tiered.Policy{p}})
		m := r.Metrics
		if m.OverAdmission > 0 || m.Unaccounted != 0 || row.text == rareKeys && perToken(r) > 0.05 {
			t.Errorf("%v in %q: %+v", row.limits, r.Scenario.Name, m)
		}
	}
}
