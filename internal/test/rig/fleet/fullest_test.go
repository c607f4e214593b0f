package fleet_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fleet"
)

// The counts are those of the definition.
func TestFullestByDefinition(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var all []fleet.Record
		for range r.IntN(40) {
			before := r.Int64N(100)
			all = append(all, fleet.Record{Before: before, After: before + r.Int64N(15), Allowed: r.IntN(4) > 0})
		}
		const d = 10
		most, aligned := 0, 0
		for start := int64(0); start < 120; start++ {
			n := 0
			for _, a := range all {
				if a.Allowed && a.Before >= start && a.After < start+d {
					n++
				}
			}
			if most = max(most, n); start%d == 0 {
				aligned = max(aligned, n)
			}
		}
		if got := fleet.FullestInterval(all, d*time.Nanosecond); got != most {
			t.Fatalf("seed %d: interval %d, want %d", seed, got, most)
		}
		if got := fleet.FullestWindow(all, d*time.Nanosecond); got != aligned {
			t.Fatalf("seed %d: window %d, want %d", seed, got, aligned)
		}
	}
}
