package fleet_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fleet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestMain(m *testing.M) { fleet.Main(m) }

// Judge finds a stream that exceeds by one token, wherever that token is, and accuses none at the
// very edge of the bound: 500 at once, then one each half millisecond.
func TestTheJudgeCanFail(t *testing.T) {
	limit := tiered.PerSecond(2000).WithBurst(500)
	var edge []fleet.Record
	for i := range int64(3000) {
		at := max(0, i-499) * 500_000
		edge = append(edge, fleet.Record{Before: at, After: at, Allowed: true})
	}
	if v := fleet.Judge(edge, limit); v.Over() > 0 || v.Worst.Over < -0.5 {
		t.Fatalf("a stream at the edge: %v", v.Worst)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		one := edge[random.IntN(len(edge))]
		if v := fleet.Judge(append(slices.Clone(edge), one), limit); v.Over() < 1-0.01 {
			t.Fatalf("one token too many at %v goes unseen: %v", time.Duration(one.Before), v.Worst)
		}
	}
	if v := fleet.Judge(nil, limit); v.Over() > 0 || v.Admitted != 0 {
		t.Fatalf("nothing: %+v", v)
	}
}
