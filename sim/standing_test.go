package sim_test

import (
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
)

// rareKeys is 2000 users of whom each is far below the limit. The table of fractions is in
// quarantine for 65 s.
const rareKeys = `name: many rarely used keys
limits:
  - {name: users, rate: 100/s, burst: 200}
fleet: {n: 4, standing: 1/8}
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
		{"1/8", 0.01},
		{"1/2", 0.01},
		{"off", 1},
	} {
		text := strings.Replace(rareKeys, "standing: 1/8", "standing: "+row.standing, 1)
		r := rehearse(t, text, &sim.Options{Seed: 20})
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
