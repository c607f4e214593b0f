package sim

import (
	"slices"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A policy of yours may have Shards: which of them a process uses is the seed's, so a run repeats. A healthy one keeps the bound
// over all shards.
func TestShardsRepeatWithTheirSeed(t *testing.T) {
	own := func(seed uint64, shards int, text string) *measure.Report {
		return rehearse(t, text, &Options{Seed: seed, Policies: []tiered.Policy{
			{Name: "api", Limit: tiered.PerSecond(300).WithBurst(100), Shards: shards},
		}})
	}
	a, b := own(1, 4, troubled), own(1, 4, troubled)
	if !slices.Equal(lines(t, a), lines(t, b)) {
		t.Errorf("two runs of one seed differ:\n%s", differing(lines(t, a), lines(t, b)))
	}
	const calm = `name "a key in shards"
limit     api rate=300/s burst=100
fleet     n=12
traffic   poisson limit=api rate=450/s
run       10s
`
	r := own(1, 4, calm)
	if m := r.Metrics; m.OverAdmission > 0 || m.Utilisation < 0.95 {
		t.Errorf("over-admission %v, utilisation %v", m.OverAdmission, m.Utilisation)
	}
}
