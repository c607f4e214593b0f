// Package rehearsal makes up reports of rehearsals, from a seed, for the tests and the screenshots of what draws them. They
// look like real ones and are none: nothing ran.
package rehearsal

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

const second = scenario.Duration(time.Second)

// Shape says what a made-up report is about.
type Shape struct {
	Seed      uint64
	Steps     int
	Processes int
	Mode      string // local, open, closed
	Length    float64
	Broken    bool // an expectation
}

// Usual is half a minute's outage of a minute's run.
var Usual = Shape{Seed: 7, Steps: 600, Processes: 50, Mode: "local", Length: 60}

// Report makes one up: Redis is silent from a third of the run for a quarter of it, and a tenth of the processes crash later.
func Report(s Shape) *measure.Report {
	r := rand.New(rand.NewPCG(s.Seed, 0x7265686561727365))
	from, to, crash := s.Length/3, s.Length*7/12, s.Length*41/60
	rep := &measure.Report{
		Schema: measure.Schema, Engine: "virtual", Seed: s.Seed, Unseed: fmt.Sprintf("%016x", r.Uint64()), Version: "v0.1.0 go1.26.8",
		Passed: !s.Broken,
		Scenario: &scenario.Scenario{
			Name: "Redis falls silent for 15 s, and then five processes crash", Learn: "What fail-" + s.Mode + " costs while Redis says nothing, and how fast you come back.",
			Limits:  []scenario.Limit{{Name: "api", Tokens: 1000, Per: second, Burst: 1000}},
			Fleet:   scenario.Fleet{N: s.Processes, Mode: s.Mode, Size: 20, Period: second / 4, Processes: s.Processes},
			Traffic: []scenario.Traffic{{Shape: "poisson", Limit: "api", Rate: 1500}},
			Net:     scenario.Net{RTT: second * 300 / 1e6, Jitter: second * 200 / 1e6},
			Faults:  []scenario.Fault{{At: second * 20, Kind: "blackhole", Only: "replies", For: second * 15}, {At: second * 41, Kind: "crash", Procs: scenario.Part{Share: .1}, Restart: 2 * second}},
			Length:  scenario.Duration(s.Length * float64(time.Second)), WarmUp: 5 * second,
			Expect: []scenario.Expectation{{Metric: "over_admission", Op: "<=", Value: 1000}},
		},
		Faults: []measure.FaultSpan{
			{Text: "at 20s blackhole only=replies for=15s", FromS: from, ToS: to},
			{Text: "at 41s crash procs=10% restart=2s", FromS: crash, ToS: crash + s.Length/30},
		},
		Expectations: []measure.Outcome{
			{Text: "over_admission <= 1000", Value: 212, Passed: true},
			{Text: "shortfall <= 5%", Value: .041, Passed: !s.Broken},
			{Text: "decide_p99 <= 1ms", Value: .00042, Passed: true},
			{Text: "recovered <= 3s after=35s", Value: 1.2, Passed: true},
		},
		Sometimes: []measure.Happening{
			{Name: "breaker_open", Count: int64(s.Processes), Wanted: true},
			{Name: "lease_lost", Count: 31, Wanted: true},
			{Name: "short_grant", Count: 1204},
			{Name: "debt_settled", Count: 48},
			{Name: "process_died", Count: 5},
			{Name: "stale_reply"},
		},
	}
	series(rep, r, s, from, to, crash)
	breakers(rep, r, s, from, to, crash)
	rep.Metrics = metrics(r, 1)
	rep.Phases = []measure.Phase{
		{Name: "before", FromS: 5, ToS: from, Metrics: metrics(r, 0)},
		{Name: "during", FromS: from, ToS: to, Metrics: metrics(r, 1)},
		{Name: "after", FromS: to, ToS: s.Length, Metrics: metrics(r, .3)},
	}
	rep.Limits = map[string]measure.Metrics{"api": rep.Metrics}
	return rep
}

// metrics are plausible for a part of a run that went so badly, from 0 to 1. What an outage alone tells is −1 without one.
func metrics(r *rand.Rand, badly float64) measure.Metrics {
	m := measure.Metrics{
		Offered: 82_310, Admitted: 53_120, Ideal: 55_000, OverAdmission: math.Floor(212 * badly), Shortfall: .002 + .039*badly*r.Float64(), DeniedWithin: .001 * badly,
		Utilisation: .999 - .03*badly, DecideP50: 0, DecideP99: 412, DecideP999: 430, DecideMax: 480 + 19_520*badly, Waited: .0021, RedisCalls: 261 - 180*badly, CallsPerToken: .0049,
		Lost: int64(310 * badly), Burnt: int64(120 * badly), Alone: int64(14_600 * badly), Detect: 161, Heal: 1_020, Recovered: 1_204, Open: badly,
		BreakerChanges: int(4 * badly), Probes: int(9 * badly), Jain: .994 - .01*badly, Keys: 1, LeastProcess: .96 - .1*badly, JainKeys: 1, LeastKey: .97 - .1*badly, StarvedProcess: 60 + 900*badly, StarvedKey: 4 + 100*badly,
	}
	if badly == 0 {
		m.Detect, m.Heal, m.Recovered = -1, -1, -1
	}
	return m
}

// series fills in what happened over time.
func series(rep *measure.Report, r *rand.Rand, s Shape, from, to, crash float64) {
	step := s.Length / float64(s.Steps)
	rep.Series.StepS = step
	z := &rep.Series
	noise := func(mean float64) float64 {
		return max(0, mean+r.NormFloat64()*math.Sqrt(mean/step)*.8)
	}
	var granted, spent, returned, burnt, lost float64
	for i := range s.Steps {
		t := (float64(i) + .5) * step
		out := t > from && t < to
		offered := noise(1500)
		admitted, alone, calls, us, jain, open := noise(1000), 0.0, noise(260), 1.0, .995-.004*r.Float64(), 0.0
		if i == 0 {
			admitted, calls = min(offered, 1400), 600
		}
		if r.IntN(9) == 0 {
			us = 300 + 200*r.ExpFloat64()
		}
		if out {
			alone, calls, us, jain, open = noise(970), 40+30*r.Float64(), 20_000, .985-.02*r.Float64(), min(1, (t-from)/.16)
			switch s.Mode {
			case "open":
				alone = offered
			case "closed":
				alone = 0
			}
			admitted = alone
			if t-from > 1 {
				us = 1
			}
		}
		if t > to && t < to+1.2 {
			admitted, open, calls = noise(600+320*(t-to)), max(0, 1-(t-to)), 500
		}
		if math.Abs(t-crash-s.Length/60) < s.Length/60 {
			admitted, jain = noise(940), .9+.05*r.Float64()
		}
		ideal := min(offered, 1000)
		if i == 0 {
			ideal = offered
		}
		z.Offered, z.Admitted, z.Ideal = append(z.Offered, offered), append(z.Admitted, admitted), append(z.Ideal, ideal)
		z.Limit, z.Alone, z.Calls = append(z.Limit, 1000), append(z.Alone, alone), append(z.Calls, calls)
		z.MaxUs, z.Open, z.Jain = append(z.MaxUs, us), append(z.Open, open), append(z.Jain, jain)

		spent += (admitted - alone) * step
		if !out {
			returned += 3 * step
		} else {
			lost += min(20, 40*r.Float64()*step)
		}
		if t > crash && t < crash+s.Length/30 {
			burnt += 30 * step
		}
		held := 700 + 60*r.NormFloat64()
		if out {
			held = max(0, 700-500*(t-from))
		}
		granted = spent + returned + burnt + held + lost
		z.Granted, z.Spent, z.Returned = append(z.Granted, int64(granted)), append(z.Spent, int64(spent)), append(z.Returned, int64(returned))
		z.Burnt, z.Held = append(z.Burnt, int64(burnt)), append(z.Held, int64(held))
		rep.Ledger = measure.Ledger{
			Granted: int64(granted), Spent: int64(spent), Returned: int64(returned), Burnt: int64(burnt), Held: int64(held), Lost: int64(lost),
		}
	}
}

// breakers fills in what each breaker did.
func breakers(rep *measure.Report, r *rand.Rand, s Shape, from, to, crash float64) {
	for i := range min(s.Processes, 100) {
		b := measure.BreakerStrip{Process: fmt.Sprint(i)}
		change := func(at float64, state string) {
			b.Changes = append(b.Changes, measure.BreakerChange{AtS: at, State: state})
		}
		change(0, "closed")
		at := from + .15 + .2*r.Float64()
		change(at, "open")
		for {
			at += .5 + .5*r.Float64()
			change(at, "probing")
			if at > to {
				change(at+.001, "closed")
				break
			}
			at += .05
			change(at, "open")
		}
		if i%10 == 3 {
			change(crash, "gone")
			change(crash+s.Length/30, "closed")
		}
		rep.Breakers = append(rep.Breakers, b)
	}
}
