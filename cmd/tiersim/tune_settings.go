package main

import (
	"errors"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// setting is what a user chooses of a policy and of Options.
type setting struct {
	mode                string
	lease               lease
	processes, standing bool // Options.Processes is set; Policy.Standing is on
}

type lease struct {
	name, code string
	size       int64 // as a scenario has it: 0 follows demand, −1 leases nothing
	period     scenario.Duration
}

const second = scenario.Duration(time.Second)

var (
	onDemand = lease{name: "follows demand"}
	ofSecond = lease{"follows demand, for 1s", ", Lease: tiered.Lease{Period: time.Second}", 0, second}
	ofTenth  = lease{"follows demand, for 100ms", ", Lease: tiered.Lease{Period: 100 * time.Millisecond}", 0, second / 10}
	noLease  = lease{"none", ", Lease: tiered.Lease{Size: tiered.NoLease}", -1, 0}
)

// settings are all that tune tries, the plainest first.
var settings = []setting{
	{mode: "local", lease: onDemand, processes: true},
	{mode: "local", lease: onDemand},
	{mode: "local", lease: ofSecond, processes: true},
	{mode: "local", lease: ofTenth, processes: true},
	{mode: "local", lease: noLease, processes: true},
	{mode: "local", lease: onDemand, processes: true, standing: true},
	{mode: "closed", lease: onDemand},
	{mode: "closed", lease: ofSecond},
	{mode: "closed", lease: noLease},
	{mode: "closed", lease: onDemand, standing: true},
	{mode: "open", lease: onDemand},
}

// service is what a user knows of a service, and what follows from that.
type service struct {
	limit         tiered.Limit // of each key
	processes     int
	keys          int64   // that are asked for at one time
	demand        float64 // of each key, in times its limit
	cost, maxCost int64   // tokens per request
	rtt, outage   time.Duration

	noShares      error             // why standing shares are not tried
	rate          float64           // requests per second over all keys
	played        int64             // keys that are simulated: they do not change each other, so that some tell of all
	warm, at, end scenario.Duration // of a run: it is measured from then on, a fault begins, it ends
}

// What is simulated of a run: enough to tell, and so little that the answer comes in seconds.
const (
	enoughRequests, enoughKeys   = 5000.0, 50.0
	fewestRequests, mostRequests = 100, 60_000
)

// plan fills in what follows from the rest.
func (s *service) plan() {
	each := s.demand * float64(s.limit.Tokens) / s.limit.Per.Seconds() * 2 / float64(s.cost+s.maxCost)
	s.rate = each * float64(s.keys)
	margin := min(max(s.outage/2, 4*time.Second), 15*time.Second) // before and after a fault
	// Before it is measured, keys beyond their limit have no burst left, and the shares of others are full.
	settles := s.limit.Per.Seconds() * float64(s.limit.Burst) / float64(s.limit.Tokens)
	if s.demand > 1 {
		settles /= s.demand - 1
	}
	warm := margin + time.Duration(math.Ceil(min(settles, 300)))*time.Second
	if s.noShares = errors.New("they are for keys that are asked for less than their limit"); s.demand < 1 {
		s.noShares = tiered.Policy{Name: "api", Limit: s.limit, Standing: tiered.StandingOn}.Validate()
	}
	if s.noShares == nil {
		warm += 65 * time.Second // then shares begin
	}
	s.warm, s.at = scenario.Duration(warm), scenario.Duration(warm+margin)
	s.end = s.at + scenario.Duration(s.outage+margin)
	s.played = int64(min(float64(s.keys), enoughKeys, math.Ceil(enoughRequests/time.Duration(s.end).Seconds()/each)))
}

// troubles are what a setting goes through, and their faults. A good day is the first.
func (s *service) troubles() (names []string, faults [][]scenario.Fault) {
	length := scenario.Duration(s.outage)
	every := scenario.Duration(max(s.outage/2/time.Duration(s.processes), time.Millisecond).Round(time.Millisecond))
	silent, half := scenario.Fault{At: s.at, For: length, Kind: "blackhole"}, scenario.Part{Share: 0.5}
	return []string{"no fault", "Redis silent", "half cut off", "silent, deploy", "40 ms slower"}, [][]scenario.Fault{
		{},
		{silent},
		{{At: s.at, For: length, Kind: "blackhole", Procs: half}},
		{silent, {At: s.at + length/4, Kind: "deploy", Every: every}},
		{{At: s.at, For: length, Kind: "latency", Delay: second / 25, Jitter: second / 500}},
	}
}

// scenario is a setting with faults.
func (s *service) scenario(c setting, faults []scenario.Fault) *scenario.Scenario {
	fleet := scenario.Fleet{N: s.processes, Mode: c.mode, Size: c.lease.size, Period: c.lease.period}
	if c.processes {
		fleet.Processes = s.processes
	}
	if c.standing {
		fleet.Standing = "on"
	}
	limit := scenario.Limit{
		Name: "api", Tokens: s.limit.Tokens, Per: scenario.Duration(s.limit.Per), Burst: s.limit.Burst,
	}
	return &scenario.Scenario{
		Name: "tune", Limits: []scenario.Limit{limit}, Fleet: fleet,
		Traffic: []scenario.Traffic{{
			Shape: "poisson", Rate: s.rate / float64(s.keys) * float64(s.played), Keys: s.played,
			Cost: s.cost, MaxCost: s.maxCost,
		}},
		Net: scenario.Net{RTT: scenario.Duration(s.rtt)}, Faults: faults, WarmUp: s.warm, Length: s.end,
	}
}

// result is what came of a setting: of each figure that can be accepted the worst, and in which of the troubles it was. They
// are the tokens beyond the limit of a key, the per cent short of what an ideal limiter admits, and calls per second.
type result struct {
	setting
	figures    [3]float64
	in         [3]string
	perRequest float64  // calls, without a fault
	missed     []string // what is accepted and not kept
}

// over returns the tokens over the limit. The clock of Redis has whole microseconds, so what refills in two is none.
func (s *service) over(tokens float64) float64 {
	if tokens > 0 && tokens <= 2e-6*float64(s.limit.Tokens)/s.limit.Per.Seconds() {
		return 0
	}
	return tokens
}

// run runs all settings through all troubles.
func (s *service) run(o *sim.Options) (results []result, err error) {
	var all []*scenario.Scenario
	names, faults := s.troubles()
	for _, c := range settings {
		if c.standing && s.noShares != nil {
			continue
		}
		results = append(results, result{setting: c})
		for _, f := range faults {
			all = append(all, s.scenario(c, f))
		}
	}
	reports, err := sim.RunAll(all, o)
	for i, report := range reports {
		if err != nil {
			return nil, err
		}
		r, m := &results[i/len(names)], &report.Metrics
		calls := m.RedisCalls * float64(s.keys) / float64(s.played)
		for j, v := range [3]float64{s.over(m.OverAdmission), 100 * m.Shortfall, calls} {
			if r.in[j] == "" || v > r.figures[j] {
				r.figures[j], r.in[j] = max(v, -1), names[i%len(names)]
			}
		}
		if i%len(names) == 0 {
			requests := float64(m.Offered) * 2 / float64(s.cost+s.maxCost)
			r.perRequest = m.RedisCalls * time.Duration(s.end-s.warm).Seconds() / max(requests, 1)
		}
	}
	return results, err
}
