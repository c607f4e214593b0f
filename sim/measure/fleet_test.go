package measure_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// tell tells a meter of events. An event says when it happened, to which process, and what: a state
// of its breaker, join or die, the begin or the end of the fault with that number, or a number of
// calls.
func tell(m *measure.Meter, events string) {
	for e := range strings.SplitSeq(events, ", ") {
		var when, what string
		var process int
		if _, err := fmt.Sscan(e, &when, &process, &what); err != nil {
			panic(err)
		}
		at, err := time.ParseDuration(when)
		if err != nil {
			panic(err)
		}
		switch what {
		case "join":
			m.Joined(at, process)
		case "die":
			m.Died(at, process)
		case "begin", "end":
			m.Fault(at, process, what == "end")
		case "calls":
			m.Called(at, 0, process)
		default:
			m.Breaker(at, process, what)
		}
	}
}

// fault adds a fault.
func fault(at time.Duration, kind string, f scenario.Fault) func(*scenario.Scenario) {
	return func(x *scenario.Scenario) {
		f.At, f.Kind = scenario.Duration(at), kind
		x.Faults = append(x.Faults, f)
	}
}

func calm(x *scenario.Scenario) { x.Faults = nil }

func TestDetectAndHeal(t *testing.T) {
	two := fault(12*s, "latency", scenario.Fault{For: scenario.Duration(2 * s)})
	later := fault(22*s, "latency", scenario.Fault{For: scenario.Duration(2 * s)})
	flush := func(x *scenario.Scenario) { x.Faults[0] = scenario.Fault{At: scenario.Duration(10 * s), Kind: "flush"} }
	for _, c := range []struct {
		name         string
		change       func(*scenario.Scenario)
		events       string
		detect, heal float64 // s
	}{
		{"nothing opens", nil, "10s 0 begin, 20s 0 end", -1, -1},
		{
			"the last one counts", nil,
			"10s 0 begin, 10.15s 0 open, 10.4s 1 open, 11s 0 probing, 11.05s 0 open, 20s 0 end, 20.3s 1 probing, " +
				"20.301s 1 closed, 20.7s 0 closed",
			0.4, 0.7,
		},
		{
			"the first opening of each counts", nil,
			"10s 0 begin, 10.1s 0 open, 12s 0 closed, 15s 0 open, 20s 0 end, 21s 0 closed",
			0.1, 1,
		},
		{"closed at the end", nil, "10s 0 begin, 11s 0 open, 12s 0 closed, 20s 0 end", 1, 0},
		{"it opens when all is over, of timeouts", nil, "10s 0 begin, 20s 0 end, 20.05s 0 open, 21s 0 closed", 10.05, 1},
		{"it opens long after: that is not the fault's", nil, "10s 0 begin, 20s 0 end, 21s1ns 0 open, 22s 0 closed", -1, -1},
		{
			"it closes and opens again", nil,
			"10s 0 begin, 10.005s 0 open, 20s 0 end, 20.3s 0 closed, 20.9s 0 open, 22s 0 closed",
			0.005, 2,
		},
		{"it never heals", nil, "10s 0 begin, 11s 0 open, 20s 0 end, 25s 0 probing", 1, -1},
		{"who dies has no breaker", nil, "10s 0 begin, 11s 0 open, 20s 0 end, 25s 0 die", 1, 5},
		{
			"who comes later begins later", nil,
			"10s 0 begin, 10.1s 0 open, 15s 2 join, 15.07s 2 open, 20s 0 end, 20.5s 2 closed, 21s 0 closed",
			0.1, 1,
		},
		{
			"one fault covers the end of the other", two,
			"10s 0 begin, 10.2s 0 open, 12s 1 begin, 12.3s 1 open, 14s 1 end, 20s 0 end, 20.5s 0 closed, 20.6s 1 closed",
			2.3, 0.6,
		},
		{
			"one heals, the other does not", later,
			"10s 0 begin, 11s 0 open, 20s 0 end, 21s 0 closed, 22s 1 begin, 23s 0 open, 24s 1 end",
			1, -1,
		},
		{"a fault that does not last ends at once", flush, "10s 0 begin, 10.05s 0 open, 11s 0 closed", 0.05, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var changes []func(*scenario.Scenario)
			if c.change != nil {
				changes = append(changes, c.change)
			}
			m := measure.New(made(changes...))
			tell(m, "0s 0 join, 0s 1 join, "+c.events)
			r := m.Report()
			near(t, "detect", r.Metrics.Detect, c.detect)
			near(t, "heal", r.Metrics.Heal, c.heal)
			near(t, "before, detect", phase(t, r, "before").Detect, -1)
			near(t, "before, heal", phase(t, r, "before").Heal, -1)
		})
	}
}

// The beginning of a fault is in the phase during, its end in the phase after.
func TestDetectAndHealByPhase(t *testing.T) {
	m := measure.New(made(expecting("detect", "<=", 0.1, 0, 0), expecting("heal", "<=", 0.2, 20*s, 0),
		expecting("heal", "<=", 9, 0, 20*s)))
	tell(m, "0s 0 join, 10s 0 begin, 10.1s 0 open, 20s 0 end, 20.201s 0 closed")
	r := m.Report()
	near(t, "during, detect", phase(t, r, "during").Detect, 0.1)
	near(t, "during, heal", phase(t, r, "during").Heal, -1)
	near(t, "after, detect", phase(t, r, "after").Detect, -1)
	near(t, "after, heal", phase(t, r, "after").Heal, 0.201)
	want(t, "detect", r.Expectations[0], measure.Outcome{Text: "detect <= 100ms", Value: 0.1, Passed: true})
	want(t, "heal", r.Expectations[1], measure.Outcome{Text: "heal <= 200ms after=20s", Value: 0.201, Passed: false})
	want(t, "what cannot be told is not met", r.Expectations[2],
		measure.Outcome{Text: "heal <= 9s before=20s", Value: -1, Passed: false})
	want(t, "span", r.Faults[0], measure.FaultSpan{"at 10s blackhole for=10s", 10, 20})
}

func TestOpenBreakers(t *testing.T) {
	m := measure.New(made())
	tell(m, "0s 0 join, 0s 1 join, 0s 2 join, 0s 3 join, 9s 3 open, 9.5s 3 closed") // 1 of 4
	// 2 of 4, then 1 and 2 of 3.
	tell(m, "10s 0 open, 11s 1 open, 12s 1 die, 12s 2 probing, 12s1ns 2 open, 12s2ns 2 probing, 13s 2 closed")
	tell(m, "21s 0 closed, 24s 2 open, 26s 4 join") // 1 of 3 before it
	r := m.Report()
	for step, v := range map[int]float64{
		0: 0, 89: 0, 90: 0.25, 94: 0.25, 96: 0, 99: 0, 100: 0.25, 110: 0.5, 120: 0.6667,
		131: 0.3333, 209: 0.3333, 211: 0, 250: 0.3333, 265: 0.25,
	} {
		near(t, "series", r.Series.Open[step], v)
	}
	for name, w := range map[string]int64{
		"breaker_open": 5, "breaker_closed": 3, "probe_failed": 1, "process_died": 1, "process_joined": 3,
	} {
		want(t, name, count(t, r, name), w)
	}
}

// The rate of a small limit is that of a longer time: what chance makes of few tokens is no outage,
// and an outage still is.
func TestRecovered(t *testing.T) {
	from := func(n int) func(i int) int64 { return func(i int) int64 { return int64(min(1, i/n)) } }
	for _, c := range []struct {
		name     string
		ideal    int64 // in each step of 100 ms
		admitted func(i int) int64
		steps    int
		want     time.Duration
	}{
		{"at once", 1000, func(int) int64 { return 1000 }, 100, 0},
		{"after 1.5 s", 1000, func(i int) int64 { return 500 + 500*from(15)(i) }, 100, 1400 * ms}, // then one in ten is 50 % less
		{"5 % less", 1000, func(i int) int64 { return 950 }, 100, 0},
		{"6 % less until 3 s", 1000, func(i int) int64 { return 940 + 60*from(30)(i) }, 100, 2200 * ms},
		{"a step without any", 1000, func(i int) int64 { return 1000 * min(1, int64(max(i-19, 19-i))) }, 100, 2 * s},
		{"never", 1000, func(int) int64 { return 900 }, 100, -1},
		// 40 tokens per second: 400 are 10 s, of which 20 may be missing.
		{"few: 2.5 % less", 4, func(i int) int64 { return 4 - int64(i%10/9) }, 400, 0},
		{"few: a quarter less", 4, func(int) int64 { return 3 }, 400, -1},
		{"few: nothing for half a second now and then", 4, func(i int) int64 { return 4 * from(5)(i%200) }, 400, 0},
		{"few: an outage of five seconds more", 4, func(i int) int64 { return 4 * from(50)(i) }, 400, 4500 * ms},
		{"few: one in 58 steps of 7, which are 406", 7, func(i int) int64 { return 6 + from(20)(i) }, 200, 0},
		// 10 tokens per second: ten seconds is all that a rate is taken over, of which √100 = 10
		// may be missing.
		{"very few: nothing for five seconds", 1, func(i int) int64 { return from(50)(i) }, 1000, 4 * s},
		{"one where none should be", 0, func(i int) int64 { return from(5)(i) - from(6)(i) }, 100, 0},
		// Eleven rates of a second each, in time or not.
		{"the end is 2 s away", 1000, func(i int) int64 { return 1000 * from(15)(i) }, 35, 1500 * ms},
		{"the end is 1.9 s away", 1000, func(i int) int64 { return 1000 * from(15)(i) }, 34, -1},
		// Only 5 s are left, and a rate is taken over half of them.
		{"the end is near", 4, func(i int) int64 { return 4 * from(10)(i) }, 50, 800 * ms},
	} {
		want(t, c.name, measure.Recovered(c.steps, c.ideal, c.admitted), c.want)
	}
	// It is of what comes after the last fault, of each limit, and not known of other parts.
	m := measure.New(made(twoLimits))
	for at := 10 * s; at < 30*s; at += s {
		ask(m, at, 0, 0, "k", 10, min(10, 10*int((at-10*s)/(12*s))))
		ask(m, at, 0, 1, "k", 1, 1)
	}
	r := m.Report()
	near(t, "api", r.Limits["api"].Recovered, 1.1)
	near(t, "users", r.Limits["users"].Recovered, 0)
	near(t, "during", phase(t, r, "during").Recovered, -1)
	near(t, "after", phase(t, r, "after").Recovered, r.Metrics.Recovered)
}

// Phases are as long as the faults; without any there is one.
func TestPhases(t *testing.T) {
	d := func(d time.Duration) scenario.Duration { return scenario.Duration(d) }
	type changes = []func(*scenario.Scenario)
	for _, c := range []struct {
		name    string
		changes changes
		want    string // names, and seconds
	}{
		{"none", changes{calm}, "before 0-30"},
		{"one", nil, "before 0-10 during 10-20 after 20-30"},
		{"without an end", changes{calm, fault(5*s, "freeze", scenario.Fault{})}, "before 0-5 during 5-30"},
		{"at an instant", changes{calm, fault(5*s, "flush", scenario.Fault{})}, "before 0-5 after 5-30"},
		{"two", changes{fault(4*s, "crash", scenario.Fault{Restart: d(2 * s)})}, "before 0-4 during 4-20 after 20-30"},
		{
			"a deployment",
			changes{calm, fault(4*s, "deploy", scenario.Fault{Every: d(3 * s)})},
			"before 0-4 during 4-10 after 10-30",
		},
		{"beyond the end", changes{fault(25*s, "freeze", scenario.Fault{For: d(time.Hour)})}, "before 0-10 during 10-30"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := ""
			for _, p := range measure.New(made(c.changes...)).Report().Phases {
				text += fmt.Sprintf(" %s %.0f-%.0f", p.Name, p.FromS, p.ToS)
			}
			want(t, "phases", text, " "+c.want)
		})
	}
}
