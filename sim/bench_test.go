package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// BenchmarkRun is how long a run takes by the size of the fleet: make hunt HUNT=speed. A run of
// 2000 processes for a minute took half a minute of two processors.
func BenchmarkRun(b *testing.B) {
	for _, size := range []struct {
		processes int
		length    time.Duration
	}{{50, time.Minute}, {2000, time.Minute}, {100, time.Hour}} {
		b.Run(fmt.Sprintf("%d processes for %v", size.processes, size.length), func(b *testing.B) {
			s := &scenario.Scenario{
				Name: "speed", Limits: []scenario.Limit{{Name: "api", Limit: tiered.PerSecond(1000)}},
				Fleet:   scenario.Fleet{N: size.processes},
				Traffic: []scenario.Traffic{{Shape: "poisson", Rate: 1500}}, Length: scenario.Duration(size.length),
			}
			requests := int64(0)
			for b.Loop() {
				r := fatal.Get(sim.Run(s, nil))(b)
				requests += r.Metrics.Offered
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(requests), "ns/request")
		})
	}
}
