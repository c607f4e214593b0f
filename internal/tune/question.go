package tune

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Question is what a user knows of a service, and what they accept. [Question.Check] fills in what is left out.
type Question struct {
	Limit     scenario.Limit    // of each key
	Processes int               // 1 … 1000
	RTT       scenario.Duration // to Redis and back; 0 is 400us

	Shape   string  // of demand: steady (default), bursts, ramp, wave
	Demand  float64 // of each key, in times the limit: 0.01 … 100; 0 is 1.5
	Keys    int64   // that are asked for at one time, 1 … 100 000; 0 is 1
	Cost    int64   // tokens per request, at least; 0 is 1
	MaxCost int64   // and at most; 0 is Cost

	Outage scenario.Duration // how long the faults last, 3s … 10m; 0 is 15s
	Faults []string          // of Faults; empty is all

	// What is accepted, with every fault: tokens beyond the limit in the worst interval, per key; the part of what
	// an ideal limiter admits that is not admitted, outage and all; calls of Redis per second, 0 for any number.
	Over      float64
	Shortfall float64
	Calls     float64

	Seed     uint64
	Requests float64 // simulated per second at most: beyond them one stands for several; 0 is 300
}

// defaultRequests are few enough for an answer in about ten seconds, and enough demand for each of twenty processes.
const defaultRequests = 300

// shapes of demand.
var shapes = []string{"steady", "bursts", "ramp", "wave"}

// fault is what each choice has to pass through.
type fault struct {
	name, what string
	statements func(at, length time.Duration, processes int) []string
}

// faults are in the order of how much they tell.
var faults = []fault{
	{"blackhole", "Redis is silent", func(at, length time.Duration, _ int) []string {
		return []string{fmt.Sprintf("at %v blackhole for=%v", at, length)}
	}},
	{
		"deploy", "Redis is silent, and all processes are replaced meanwhile",
		func(at, length time.Duration, processes int) []string {
			every := max(length/2/time.Duration(processes), time.Millisecond).Round(time.Millisecond)
			return []string{
				fmt.Sprintf("at %v blackhole for=%v", at, length),
				fmt.Sprintf("at %v deploy every=%v", at+length/4, every),
			}
		},
	},
	{"none", "nothing goes wrong", func(time.Duration, time.Duration, int) []string { return nil }},
	{"kill", "Redis dies and comes back empty", func(at, length time.Duration, _ int) []string {
		return []string{fmt.Sprintf("at %v kill for=%v", at, length)}
	}},
	{"partition", "half of the processes are cut off", func(at, length time.Duration, _ int) []string {
		return []string{fmt.Sprintf("at %v blackhole procs=50%% for=%v", at, length)}
	}},
	{"flap", "the network is up and down in turn", func(at, length time.Duration, _ int) []string {
		return []string{fmt.Sprintf("at %v flap up=1s down=1s for=%v", at, length)}
	}},
	{"slow", "round trips take 40 ms more", func(at, length time.Duration, _ int) []string {
		return []string{fmt.Sprintf("at %v latency delay=40ms jitter=2ms for=%v", at, length)}
	}},
}

// Faults returns the names of the faults.
func Faults() []string {
	names := make([]string, len(faults))
	for i, f := range faults {
		names[i] = f.name
	}
	return names
}

// Check fills in defaults and reports all that is wrong.
func (q *Question) Check() error {
	q.Shape = cmp.Or(q.Shape, shapes[0])
	q.Demand, q.Keys, q.Cost = cmp.Or(q.Demand, 1.5), cmp.Or(q.Keys, 1), cmp.Or(q.Cost, 1)
	q.MaxCost = cmp.Or(q.MaxCost, q.Cost)
	q.Limit.Burst = cmp.Or(q.Limit.Burst, q.Limit.Tokens)
	q.Limit.Name = cmp.Or(q.Limit.Name, "api")
	q.RTT, q.Outage = cmp.Or(q.RTT, scenario.DefaultRTT), cmp.Or(q.Outage, scenario.Duration(15*time.Second))
	q.Seed, q.Requests = cmp.Or(q.Seed, 1), cmp.Or(q.Requests, defaultRequests)
	if len(q.Faults) == 0 {
		q.Faults = Faults()
	}
	var all []error
	wrong := func(bad bool, field string, value any, rule string) {
		if bad {
			all = append(all, fmt.Errorf("tune: %s is %v: must be %s", field, value, rule))
		}
	}
	number := func(v, least, most float64) bool { return !(v >= least && v <= most) } // NaN is wrong
	wrong(q.Limit.Tokens < 1, "rate", q.Limit.Tokens, "1 token or more")
	wrong(q.Limit.Per < scenario.Duration(time.Microsecond), "period", q.Limit.Per, "1us or more")
	wrong(q.Limit.Burst < 1, "burst", q.Limit.Burst, "1 token or more")
	wrong(q.Processes < 1 || q.Processes > 1000, "processes", q.Processes, "1 to 1000")
	wrong(!slices.Contains(shapes, q.Shape), "shape", fmt.Sprintf("%.40q", q.Shape), "one of "+
		strings.Join(shapes, ", "))
	wrong(number(q.Demand, 0.01, 100), "demand", q.Demand, "0.01 to 100 times the limit")
	wrong(q.Keys < 1 || q.Keys > 100_000, "keys", q.Keys, "1 to 100000")
	wrong(q.Cost < 1 || q.Cost > q.Limit.Burst, "cost", q.Cost, "1 to the burst")
	wrong(q.MaxCost < q.Cost || q.MaxCost > q.Limit.Burst, "maxcost", q.MaxCost, "the cost to the burst")
	wrong(q.Outage < scenario.Duration(3*time.Second) || q.Outage > scenario.Duration(10*time.Minute), "outage",
		q.Outage, "3s to 10m")
	wrong(number(q.Over, 0, math.MaxFloat64), "over", q.Over, "0 tokens or more")
	wrong(number(q.Shortfall, 0, 1), "shortfall", q.Shortfall, "0 to 100%")
	wrong(number(q.Calls, 0, math.MaxFloat64), "calls", q.Calls, "0 per second or more")
	wrong(number(q.Requests, 10, 1e6), "requests", q.Requests, "10 to 1000000 per second")
	for i, name := range q.Faults {
		wrong(!slices.Contains(Faults(), name), "fault", fmt.Sprintf("%.40q", name), "one of "+
			strings.Join(Faults(), ", "))
		wrong(slices.Contains(q.Faults[:i], name), "fault", fmt.Sprintf("%.40q", name), "there once")
	}
	if err := errors.Join(all...); err != nil {
		return err
	}
	_, err := q.scenario(Choice{}, faults[0].name, time.Duration(q.Outage)) // whatever else the language has to say
	return err
}

// rate returns the requests per second over all keys, before scaling down.
func (q *Question) rate() float64 {
	perKey := float64(q.Limit.Tokens) / time.Duration(q.Limit.Per).Seconds()
	return q.Demand * perKey * float64(q.Keys) / (float64(q.Cost+q.MaxCost) / 2)
}

// maxCalls returns the accepted calls of Redis per second. Without a bound few are still better: then it is two per
// request, for taking and returning, and what processes do besides.
func (q *Question) maxCalls() float64 { return cmp.Or(q.Calls, 2*q.rate()+2*float64(q.Processes)) }

// scaleDown makes a demand smaller that is too much to simulate. Each simulated key stands for so many keys, which
// changes nothing for the others. If that is not enough, each request stands for so many.
func (q *Question) scaleDown() (keys, requests int64) {
	keys, requests = 1, 1
	more := q.rate() / q.Requests
	if more > 1 {
		keys = min(int64(math.Ceil(more)), max(1, q.Keys/20))
		more /= float64(keys)
	}
	if more > 1 {
		// A request stays small beside the burst: a hundredth of it at most.
		requests = max(1, min(int64(math.Ceil(more)), q.Limit.Burst/100/q.MaxCost))
	}
	return keys, requests
}

// margin returns the time before and after a fault. Twice that comes first, to warm up and to be measured.
func margin(length time.Duration) time.Duration {
	return min(max(length/2, 4*time.Second), 15*time.Second)
}

// scenario is the rehearsal of a choice in a fault that lasts for a time, with what is accepted as its expectations.
func (q *Question) scenario(c Choice, name string, length time.Duration) (*scenario.Scenario, error) {
	f := faults[slices.IndexFunc(faults, func(f fault) bool { return f.name == name })]
	keys, requests := q.scaleDown()
	rate := q.rate() / float64(keys*requests)
	warm := margin(length)
	end := 2*warm + length + margin(length)
	shape := map[string]string{
		"steady": fmt.Sprintf("poisson rate=%g/s", rate),
		"bursts": fmt.Sprintf("bursts rate=%g/s every=2s for=800ms", rate),
		"ramp":   fmt.Sprintf("ramp rate=%g/s to=%g/s", max(rate/5, 1e-6), rate*9/5),
		"wave":   fmt.Sprintf("diurnal rate=%g/s to=%g/s every=%v", max(rate/5, 1e-6), rate*9/5, end),
	}[q.Shape]
	lines := []string{
		fmt.Sprintf("name %q", "tune: "+f.what),
		fmt.Sprintf("limit x rate=%d/%v burst=%d", q.Limit.Tokens, q.Limit.Per, q.Limit.Burst),
		fmt.Sprintf("fleet n=%d %s", q.Processes, c.fleet()),
		fmt.Sprintf("traffic %s keys=%d cost=%d maxcost=%d", shape, max(1, q.Keys/keys), q.Cost*requests,
			q.MaxCost*requests),
		fmt.Sprintf("net rtt=%v", q.RTT),
		fmt.Sprintf("run %v warmup=%v", end, warm),
	}
	lines = append(lines, f.statements(2*warm, length, q.Processes)...)
	s, err := scenario.Parse(strings.Join(lines, "\n"))
	if err != nil {
		return nil, fmt.Errorf("tune: %w", err)
	}
	s.Limits[0].Name = q.Limit.Name // not as text: Validate has a look at it
	s.Expect = []scenario.Expectation{
		{Metric: "over_admission", Op: "<=", Value: q.Over + slack},
		{Metric: "shortfall", Op: "<=", Value: q.Shortfall},
		{Metric: "duplicated", Op: "<=", Value: 0},
		{Metric: "uncounted", Op: "<=", Value: 0},
	}
	if q.Calls > 0 {
		s.Expect = append(s.Expect, scenario.Expectation{
			Metric: "redis_calls", Op: "<=",
			Value: q.Calls / float64(keys),
		})
	}
	return s, s.Validate()
}

// slack is a token: what a fraction of one may be rounded to.
const slack = 1
