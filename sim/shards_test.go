package sim

import (
	"testing"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A policy of yours may have Shards, and keeps the bound over all of them. Two runs of a seed may differ by a few requests: what is
// borrowed within one instant is put in no order yet.
func TestRehearsalOfShards(t *testing.T) {
	const text = `name "a key in shards"
limit     api rate=300/s burst=100
fleet     n=12
traffic   poisson limit=api rate=450/s
run       10s
`
	for seed := range uint64(3) {
		r := rehearse(t, text, &Options{Seed: seed + 1, Policies: []tiered.Policy{
			{Name: "api", Limit: tiered.PerSecond(300).WithBurst(100), Shards: 4},
		}})
		if m := r.Metrics; m.OverAdmission > 0 || m.Utilisation < 0.95 {
			t.Errorf("seed %d: over-admission %v, utilisation %v", seed+1, m.OverAdmission, m.Utilisation)
		}
	}
}
