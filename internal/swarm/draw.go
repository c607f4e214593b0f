package swarm

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// warmUp is the time until all processes know each other. They look every three seconds.
const warmUp = 5 * time.Second

// Draw returns the scenario of a seed. With a base, its limits, fleet, traffic and network are those of the base,
// and only the faults are drawn; base is not changed, and must be valid.
func Draw(seed uint64, base *scenario.Scenario) *scenario.Scenario {
	d := drawer{rand.New(rand.NewPCG(seed, 0x5eed5))}
	var s *scenario.Scenario
	if base != nil {
		s = base.Clone()
	} else {
		s = &scenario.Scenario{}
		d.limits(s)
		d.fleet(s)
		d.traffic(s)
		s.Net = scenario.Net{RTT: d.micros(100, 3000), Jitter: d.micros(0, 400)}
	}
	s.Name, s.Learn = fmt.Sprintf("swarm, seed %d", seed), ""
	s.WarmUp = scenario.Duration(warmUp)
	s.Expect, s.Sometimes, s.Sweep = nil, nil, nil
	d.faults(s)
	if base == nil && d.chance(0.7) {
		for i := range s.Faults { // those who run a fleet know how large it gets
			s.Fleet.Processes = max(s.Fleet.Processes, s.Faults[i].N, s.Fleet.N)
		}
	}
	Expect(s, nil)
	return s
}

// drawer draws values of the language.
type drawer struct{ *rand.Rand }

func (d drawer) chance(p float64) bool       { return d.Float64() < p }
func (d drawer) between(least, most int) int { return least + d.IntN(most-least+1) }

func (d drawer) millis(least, most int) scenario.Duration {
	return scenario.Duration(time.Duration(d.between(least, most)) * time.Millisecond)
}

func (d drawer) micros(least, most int) scenario.Duration {
	return scenario.Duration(time.Duration(d.between(least, most)) * time.Microsecond)
}

// pick draws one of some.
func pick[T any](d drawer, some ...T) T { return some[d.IntN(len(some))] }

// limits draws a hot limit, and sometimes one of many users.
func (d drawer) limits(s *scenario.Scenario) {
	rate := d.between(20, 400)
	s.Limits = []scenario.Limit{{
		Name: "hot", Tokens: int64(rate), Per: scenario.Duration(time.Second),
		Burst: max(4, int64(float64(rate)*(0.1+1.9*d.Float64()))),
	}}
	if d.chance(0.4) {
		s.Limits = append(s.Limits, scenario.Limit{
			Name: "users", Tokens: int64(d.between(30, 600)),
			Per: scenario.Duration(time.Minute),
		})
	}
}

func (d drawer) fleet(s *scenario.Scenario) {
	f := &s.Fleet
	f.N = d.between(1, 12)
	f.Mode = pick(d, "local", "local", "open", "closed", "closed")
	smallest := s.Limits[0].Burst
	if len(s.Limits) > 1 {
		smallest = min(smallest, s.Limits[1].Tokens)
	}
	switch d.IntN(6) {
	case 0:
		f.Size = -1
	case 1:
		f.Size = 1 + d.Int64N((smallest+3)/4)
	}
	if d.chance(0.3) {
		f.Period = d.millis(50, 1500)
	}
	if d.chance(0.2) {
		f.Budget = d.millis(5, 60)
		f.Timeout = f.Budget + d.millis(0, 100)
	}
	if d.chance(0.2) {
		f.Processes = d.between(1, 2*f.N)
	}
	if d.chance(0.1) {
		f.MaxKeys = d.between(2, 40)
	}
}

// traffic draws a stream or two for the hot limit, from a third of it to four times, and users within theirs or not.
func (d drawer) traffic(s *scenario.Scenario) {
	rate := float64(s.Limits[0].Tokens)
	for range d.between(1, 2) {
		t := scenario.Traffic{Limit: "hot", Shape: pick(d, "poisson", "poisson", "bursts", "ramp", "diurnal", "closed")}
		draw := func() float64 { return float64(int(rate*(0.3+3.7*d.Float64()))) + 1 }
		switch t.Shape {
		case "closed":
			t.Clients, t.Think, t.Retry = d.between(1, 20), d.millis(5, 200), d.IntN(4)
		case "bursts":
			t.Rate, t.Every = draw()/2+1, d.millis(500, 3000)
			t.For = scenario.Duration(time.Duration(float64(t.Every) * (0.2 + 0.8*d.Float64())).Truncate(time.Millisecond))
		case "ramp":
			t.Rate, t.To = draw(), draw()
		case "diurnal":
			t.Rate, t.To, t.Every = draw(), draw(), d.millis(2000, 20_000)
		default:
			t.Rate = draw()
		}
		if d.chance(0.3) {
			t.ProcSkew = float64(d.IntN(3)) / 2
		}
		if d.chance(0.2) {
			t.MaxCost = 1 + d.Int64N(min(10, s.Limits[0].Burst/4+1))
		}
		if d.chance(0.15) {
			t.Cancel = float64(d.between(1, 50)) / 100
		}
		s.Traffic = append(s.Traffic, t)
	}
	if len(s.Limits) > 1 {
		keys := d.between(2, 40)
		each := float64(s.Limits[1].Tokens) / 60 * (0.2 + d.Float64())
		t := scenario.Traffic{
			Limit: "users", Shape: "poisson", Keys: int64(keys),
			Rate: float64(int(each*float64(keys))) + 1,
		}
		if d.chance(0.4) {
			t.KeySkew = 0.5
		}
		s.Traffic = append(s.Traffic, t)
	}
}
