package measure_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The series has what the limit lets through beside a burst, and only where all requests are for
// one key. Once the picture drew the sum of the limits of the keys that a step asked for: noise, and
// below what an ideal limiter admits.
func TestLine(t *testing.T) {
	one := func(x *scenario.Scenario) {
		x.Traffic = []scenario.Traffic{{Shape: "poisson", Rate: 1}}
		x.Limits[0].Limit = tiered.PerSecond(10).WithBurst(5).And(tiered.PerMinute(60).WithBurst(25))
	}
	m := measure.New(made(one))
	for i := range 5 {
		ask(m, s+time.Duration(i)*500*ms, 0, 0, "k", 5, 5) // 25 at 3 s: the second limit had 3 more meanwhile
	}
	line := m.Report().Series.Limit
	want(t, "steps", len(line), 300)
	near(t, "before", line[0], 10)
	near(t, "while the second limit has more than a burst", line[20], 10)
	near(t, "and when it has not", line[31], 1)
	near(t, "until it has more again", line[60], 1)
	near(t, "and then", line[299], 10)

	x := made(one, func(x *scenario.Scenario) {
		x.Limits[0] = scenario.Limit{Name: "api", Limit: tiered.Per(10, 7*s), Algorithm: "fixed window"}
	})
	m = measure.New(x, tiered.Policy{Limit: x.Limits[0].Limit, Algorithm: tiered.FixedWindow, Calendar: true})
	ask(m, s+50*ms, 0, 0, "k", 4, 4)
	ask(m, 3*s+50*ms, 0, 0, "k", 12, 6)
	line = m.Report().Series.Limit
	for step, left := range map[int]float64{0: 10, 10: 10, 11: 6, 19: 6, 20: 10, 30: 10, 31: 0, 89: 0, 90: 10} { // 2000 begins at 5 s of 7
		near(t, "left of a window", line[step], 10*left) // in 100 ms
	}

	for what, change := range map[string]func(x *scenario.Scenario){
		"two limits":   twoLimits,
		"two keys":     func(x *scenario.Scenario) { x.Traffic[0].Keys = 2 },
		"new keys":     func(x *scenario.Scenario) { x.Traffic[0].Keys = -1 },
		"two services": func(x *scenario.Scenario) { x.Traffic = append(x.Traffic, x.Traffic[0]) },
		"a flood": func(x *scenario.Scenario) {
			x.Faults = append(x.Faults, scenario.Fault{At: scenario.Duration(s), Kind: "flood"})
		},
	} {
		m := measure.New(made(one, change))
		ask(m, s, 0, 0, "k", 1, 1)
		if line := m.Report().Series.Limit; line != nil {
			t.Errorf("%s: there is a line for the limit: %v", what, line[:3])
		}
	}
}
