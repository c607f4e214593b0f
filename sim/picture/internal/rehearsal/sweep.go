package rehearsal

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Sweep makes up a sweep over lease sizes, fail modes and periods, with advice.
func Sweep(seed uint64) *measure.Sweep {
	r := rand.New(rand.NewPCG(seed, 0x7377656570))
	s := &measure.Sweep{
		Schema: measure.Schema, Scenario: Report(Usual).Scenario, Engine: "virtual", Seed: seed, Version: "v0.1.0 go1.26.8",
		Axes: []scenario.Axis{
			{Path: "fleet.size", Values: []string{"-1", "5", "20", "100"}},
			{Path: "fleet.mode", Values: []string{"local", "closed", "open"}},
			{Path: "fleet.period", Values: []string{"100ms", "250ms", "1s"}},
		},
		Advice: "Lease 20 tokens for 250ms and fail local: 261 Redis calls a second, never more than the burst too many, and 1.9 % too few. " +
			"Larger leases save little more and make the shortfall worse.",
	}
	s.Scenario.Sweep = s.Axes
	s.Advised = map[string]string{"fleet.size": "20", "fleet.mode": "local", "fleet.period": "250ms"}
	for _, size := range s.Axes[0].Values {
		for _, mode := range s.Axes[1].Values {
			for n, period := range s.Axes[2].Values {
				tokens, _ := strconv.ParseFloat(size, 64)
				m := metrics(r, .5)
				m.RedisCalls = 1500
				if tokens > 0 {
					m.RedisCalls = 1000/tokens*(1.4-.2*float64(n)) + 180/math.Pow(2, float64(n))
				}
				m.RedisCalls *= .97 + .06*r.Float64()
				m.Shortfall = .004 + .02*math.Sqrt(max(tokens, 0)/50)*(1+.3*float64(n)) + .002*r.Float64()
				m.OverAdmission = math.Floor(180 + 90*r.Float64())
				switch mode {
				case "open":
					m.OverAdmission = math.Floor(7_300 + 300*r.Float64())
				case "closed":
					m.OverAdmission = 0
					m.Shortfall += .25
				}
				s.Cells = append(s.Cells, measure.Cell{
					Values: map[string]string{"fleet.size": size, "fleet.mode": mode, "fleet.period": period}, Passed: mode == "local",
					Unseed: fmt.Sprintf("%016x", r.Uint64()), Metrics: m,
				})
			}
		}
	}
	return s
}
