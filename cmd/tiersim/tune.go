package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

func (a *app) tune() *cobra.Command {
	var w wish
	var policies string
	c := &cobra.Command{
		Use: "tune", Short: "Try fail modes, leases, Options.Processes and standing shares for a service", Args: cobra.NoArgs,
		Long: `Tune runs the shipped limiter with eleven settings through an outage, a partition, a deploy and a slow Redis. It says
what each costs, and which one to take. If none keeps what you accept, the exit status is 1. sim/tuning.md has examples.`,
		Example: "  tiersim tune --rate 100/s --burst 200 --processes 12\n  tiersim tune --policies policies.yaml --over 400% --shortfall 30%",
	}
	c.RunE = func(*cobra.Command, []string) error {
		wishes, others, err := w.read(c, policies)
		if err != nil {
			return err
		}
		var all []*scenario.Scenario
		for _, one := range wishes {
			all = append(all, one.scenarios()...)
		}
		progress, done := a.bar("tuning")
		reports, err := sim.RunAll(all, &sim.Options{Seed: w.seed, Progress: progress})
		done()
		if err != nil {
			return err
		}
		kept := true
		for _, one := range wishes {
			n := len(one.results) * len(troubles)
			one.measured(reports[:n])
			reports = reports[n:]
			kept = one.choose() && kept
		}
		if policies == "" {
			_, err = fmt.Fprint(a.out, w.answer())
		} else {
			_, err = fmt.Fprint(a.out, answerAll(wishes, others))
		}
		if err == nil && !kept {
			err = errBroken
		}
		return err
	}
	f := c.Flags()
	f.String("rate", "", "the limit of each key, as in 1000/s or 10/s and 1000/h; must be there without --policies")
	f.StringVar(&policies, "policies", "", "FILE: tune each policy of this file, all in one run")
	f.Int64Var(&w.burst, "burst", 0, "its burst, tokens; 0 is as many as the rate has")
	f.IntVar(&w.processes, "processes", 12, "that share the limit")
	f.DurationVar(&w.rtt, "rtt", 400*time.Microsecond, "to Redis and back")
	f.Float64Var(&w.demand, "demand", 1.5, "of each key, in times its limit, and the lowest of several")
	f.Int64Var(&w.keys, "keys", 1, "that are asked for at one time")
	f.Int64Var(&w.cost, "cost", 1, "tokens per request")
	f.Int64Var(&w.maxCost, "max-cost", 0, "costs are uniform from --cost to this; 0 is --cost")
	f.DurationVar(&w.outage, "outage", 15*time.Second, "how long faults last")
	f.String("over", "200%", "accepted over the limit of a key at worst: tokens, or a part of the burst")
	f.String("shortfall", "20%", "accepted loss of what an ideal limiter admits, outage and all")
	f.String("calls", "Inf/s", "accepted calls of Redis per second")
	f.Uint64Var(&w.seed, "seed", 1, "what all that is random depends on")
	c.MarkFlagsOneRequired("rate", "policies")
	c.MarkFlagsMutuallyExclusive("rate", "policies")
	c.MarkFlagsMutuallyExclusive("burst", "policies")
	return c
}

// wish is what a user knows of a service and accepts of it, and what follows from that.
type wish struct {
	policy        scenario.Limit // what is tuned
	burst         int64          // of each key
	processes     int
	keys          int64   // that are asked for at one time
	demand        float64 // of each key, in times its limit
	cost, maxCost int64   // tokens per request
	rtt, outage   time.Duration
	seed          uint64
	most          [3]float64 // accepted of each of the figures
	parts         [3]bool    // which of them are a part: of the burst
	requests      float64    // to be simulated in a run, if there are so many

	noShares error             // why standing shares are not tried
	fresh    bool              // keys have not used up what they begin with when they are measured
	played   int64             // keys that are simulated: they do not change each other, so that some tell of all
	base     scenario.Scenario // that each setting is played in
	faults   [len(troubles)][]scenario.Fault

	results []result
	take    int // the result to take
	kept    bool
}

// troubles are what each setting goes through. A good day is the first.
var troubles = [...]string{"no fault", "Redis silent", "half cut off", "silent, deploy", "40 ms slower"}

// figures are what can be accepted.
var figures = [3]struct{ flag, heading, unit, rule string }{
	{"over", "over the limit", "", "tokens, or per cent of the burst, as in 100 or 50%"},
	{"shortfall", "short of it", "%", "0% to 100%, as in 5%"},
	{"calls", "calls/s", "/s", "more than 0 per second, as in 200/s"},
}

// read reads the flags, and reports all that is wrong with them. It returns what is to be tuned: w,
// or each policy of a file; and why others are not.
func (w *wish) read(c *cobra.Command, policies string) (wishes []*wish, others []string, err error) {
	var all []error
	must := func(ok bool, flag, rule string) {
		if !ok {
			all = append(all, fmt.Errorf("--%s is %q: must be %s", flag, c.Flag(flag).Value, rule))
		}
	}
	w.maxCost = cmp.Or(w.maxCost, w.cost)
	must(w.processes >= 1 && w.processes <= 1000, "processes", "1 to 1000")
	must(w.rtt >= time.Microsecond && w.rtt <= 10*time.Second, "rtt", "1us to 10s")
	must(w.demand >= 0.01 && w.demand <= 100, "demand", "0.01 to 100 times the limit")
	must(w.keys >= 1 && w.keys <= 1e6, "keys", "1 to 1000000")
	must(w.cost >= 1, "cost", "1 to the burst")
	must(w.maxCost >= w.cost, "max-cost", "the cost to the burst")
	must(w.outage >= 3*time.Second && w.outage <= 10*time.Minute, "outage", "3s to 10m")
	must(w.seed >= 1, "seed", "1 or more")
	for i, x := range figures {
		text, hasUnit := strings.CutSuffix(c.Flag(x.flag).Value.String(), cmp.Or(x.unit, "%"))
		v, err := strconv.ParseFloat(text, 64)
		must(err == nil && v >= 0 && (i == 0 || hasUnit) && (i != 1 || v <= 100) && (i != 2 || v > 0), x.flag, x.rule)
		w.most[i], w.parts[i] = v, i == 0 && hasUnit
	}
	if policies != "" {
		if err := errors.Join(all...); err != nil {
			return nil, nil, err
		}
		return w.readPolicies(policies)
	}
	limit, err := tiered.ParseLimit(c.Flag("rate").Value.String())
	if err == nil {
		err = tiered.Policy{Name: "api", Limit: limit}.Validate()
	}
	must(err == nil, "rate", "tokens per period, as in 1000/s, 100/min or 10/s and 1000/h")
	limit.Burst = cmp.Or(w.burst, limit.Burst)
	must(err != nil || tiered.Policy{Name: "api", Limit: limit}.Validate() == nil, "burst", "1 to 2^40 tokens")
	if err == nil && len(all) == 0 {
		w.requests = mostRequests
		if flag, rule := w.of(scenario.Limit{Name: "api", Limit: limit}); flag != "" {
			must(false, flag, rule)
		}
	}
	return []*wish{w}, nil, errors.Join(all...)
}

// mostRequests are enough to tell, and the answer comes in seconds. Less than leastRequests tell
// nothing.
const (
	mostRequests  = 5000
	leastRequests = 100
)

// readPolicies returns a wish for each policy of a file that can be tuned, and says why others
// cannot. They share the requests, so that the answer takes no longer.
func (w *wish) readPolicies(path string) (wishes []*wish, others []string, err error) {
	file, err := policyfile.Load(path)
	if err != nil {
		return nil, nil, err
	}
	var why error
	for _, p := range file.Policies {
		one := *w
		one.requests = max(mostRequests/5, mostRequests/float64(len(file.Policies)))
		flag, rule := "", ""
		switch {
		case p.Limit == tiered.Unlimited() || p.Limit == tiered.Blocked():
			rule = fmt.Sprint("it is ", p.Limit)
		default:
			flag, rule = one.of(scenario.Limit{Name: p.Name, Limit: p.Limit, Algorithm: p.Algorithm.String()})
		}
		switch {
		case flag != "":
			why = fmt.Errorf("policy %q: --%s must be %s", p.Name, flag, rule)
			others = append(others, fmt.Sprintf("%s: --%s must be %s", p.Name, flag, rule))
		case rule != "":
			why = fmt.Errorf("policy %q: %s", p.Name, rule)
			others = append(others, p.Name+": "+rule)
		default:
			wishes = append(wishes, &one)
		}
	}
	for _, p := range file.AtOnce {
		others = append(others, p.Name+": it has no rate")
	}
	if len(wishes) == 0 {
		return nil, nil, fmt.Errorf("%s has no policy that can be tuned: %w", path, cmp.Or(why, errors.New("it is empty")))
	}
	return wishes, others, nil
}

// of makes it a wish for a policy, or says which flag must be another one.
func (w *wish) of(policy scenario.Limit) (flag, rule string) {
	w.policy, w.burst = policy, policy.Most()
	switch {
	case w.cost > w.burst:
		return "cost", "1 to the burst"
	case w.maxCost > w.burst:
		return "max-cost", "the cost to the burst"
	}
	if w.parts[0] {
		w.most[0] *= float64(w.burst) / 100
	}
	w.plan()
	requests := func(d scenario.Duration) float64 { return w.base.Traffic[0].Rate * time.Duration(d).Seconds() }
	switch {
	case requests(w.base.Length) > 60_000:
		return "rate", "low enough for 60000 requests in a run: --cost makes them fewer"
	case requests(w.base.Length-w.base.WarmUp) < leastRequests:
		return "demand", "high enough for 100 requests: --keys and --outage help"
	}
	return "", ""
}

// longestWarmUp bounds the time in which keys use up what they begin with, in seconds.
const longestWarmUp = 300

// with is the policy with a setting.
func (w *wish) with(f scenario.Fleet) tiered.Policy {
	return sim.PolicyOf(&f, &w.policy)
}

// leases reports whether there are leases of the policy, whatever the setting.
func (w *wish) leases() bool { return w.policy.Leased() }

// plan fills in what follows from the rest.
func (w *wish) plan() {
	perSecond, burst := math.Inf(1), 0.0 // of the lowest limit
	for _, l := range w.policy.Limit.Each() {
		if rate := float64(l.Tokens) / cmp.Or(l.Per, l.Calendar.Longest()).Seconds(); rate < perSecond {
			perSecond, burst = rate, float64(cmp.Or(l.Burst, l.Tokens))
		}
	}
	each := w.demand * perSecond * 2 / float64(w.cost+w.maxCost)
	margin := min(max(w.outage/2, 4*time.Second), 15*time.Second) // before and after a fault
	// Before it is measured, keys beyond their limit have no burst left, and the fallbacks of
	// others are full.
	settles := burst / perSecond
	if w.demand > 1 {
		settles /= w.demand - 1
	}
	w.fresh = w.demand > 1 && settles > longestWarmUp
	warm := margin + time.Duration(math.Ceil(min(settles, longestWarmUp)))*time.Second
	if w.noShares = errors.New("they are for keys that are asked for less than their limit"); w.demand < 1 {
		w.noShares = w.with(scenario.Fleet{Standing: "1/8"}).Validate()
	}
	if w.noShares == nil {
		warm += 65 * time.Second // then shares begin
	}
	at, length := scenario.Duration(warm+margin), scenario.Duration(w.outage)
	end := at + length + scenario.Duration(margin)
	// Of all keys as many as make the requests, and enough of those that are measured; and at most 50.
	most := max(w.requests/time.Duration(end).Seconds(), 1.01*leastRequests/(time.Duration(end)-warm).Seconds())
	w.played = int64(min(float64(w.keys), 50, math.Ceil(most/each)))
	traffic := scenario.Traffic{Shape: "poisson", Keys: w.played, Cost: w.cost, MaxCost: w.maxCost}
	traffic.Rate = each * float64(w.played)
	w.base = scenario.Scenario{
		Name: "tune", Limits: []scenario.Limit{w.policy}, Traffic: []scenario.Traffic{traffic},
		Net: scenario.Net{RTT: scenario.Duration(w.rtt)}, WarmUp: scenario.Duration(warm), Length: end,
	}
	every := scenario.Duration(max(w.outage/2/time.Duration(w.processes), time.Millisecond).Round(time.Millisecond))
	silent, half := scenario.Fault{At: at, For: length, Kind: "blackhole"}, scenario.Part{Share: 0.5}
	w.faults = [...][]scenario.Fault{
		{},
		{silent},
		{{At: at, For: length, Kind: "blackhole", Procs: half}},
		{silent, {At: at + length/4, Kind: "deploy", Every: every}},
		{{At: at, For: length, Kind: "latency", Delay: second / 25, Jitter: second / 500}},
	}
}

const second = scenario.Duration(time.Second)

// settings are all that tune tries, in Go and as a scenario has them, the plainest first. Processes
// is 1 where it is set.
var settings = []struct {
	code  string
	fleet scenario.Fleet
}{
	{"FailLocal", scenario.Fleet{Processes: 1}},
	{"FailLocal", scenario.Fleet{}},
	{"FailLocal, Lease: tiered.Lease{Period: time.Second}", scenario.Fleet{Processes: 1, Period: second}},
	{"FailLocal, Lease: tiered.Lease{Period: time.Second / 10}", scenario.Fleet{Processes: 1, Period: second / 10}},
	{"FailLocal, Lease: tiered.Lease{Size: tiered.NoLease}", scenario.Fleet{Processes: 1, Size: -1}},
	{"FailLocal, Standing: 1. / 8", scenario.Fleet{Processes: 1, Standing: "1/8"}},
	{"FailLocal, Standing: 1. / 2", scenario.Fleet{Processes: 1, Standing: "1/2"}},
	{"FailClosed", scenario.Fleet{Mode: "closed"}},
	{"FailClosed, Lease: tiered.Lease{Period: time.Second}", scenario.Fleet{Mode: "closed", Period: second}},
	{"FailClosed, Lease: tiered.Lease{Size: tiered.NoLease}", scenario.Fleet{Mode: "closed", Size: -1}},
	{"FailClosed, Standing: 1. / 8", scenario.Fleet{Mode: "closed", Standing: "1/8"}},
	{"FailClosed, Standing: 1. / 2", scenario.Fleet{Mode: "closed", Standing: "1/2"}},
	{"FailOpen", scenario.Fleet{Mode: "open"}},
}

// result is what came of a setting: of each of the figures the worst, and in which of the troubles
// it was. They are the tokens beyond the limit of a key, the per cent short of what an ideal
// limiter admits, and calls per second.
type result struct {
	code       string
	fleet      scenario.Fleet
	figures    [3]float64
	in         [3]string
	perRequest float64  // calls, without a fault
	missed     []string // what is accepted and not kept
}

// scenarios are all settings in all troubles. They begin the results.
func (w *wish) scenarios() (all []*scenario.Scenario) {
	for _, s := range settings {
		if s.fleet.Standing != "" && w.noShares != nil || !w.leases() && s.fleet.Size >= 0 && s.fleet.Mode != "open" {
			continue
		}
		w.results = append(w.results, result{code: s.code, fleet: s.fleet})
		for _, faults := range w.faults {
			played := w.base
			played.Fleet, played.Faults = s.fleet, faults
			played.Fleet.N, played.Fleet.Processes = w.processes, s.fleet.Processes*w.processes
			all = append(all, &played)
		}
	}
	return all
}

// measured fills in what came of the scenarios.
func (w *wish) measured(reports []*measure.Report) {
	for i, report := range reports {
		r, m, t := &w.results[i/len(troubles)], &report.Metrics, i%len(troubles)
		calls := m.RedisCalls * float64(w.keys) / float64(w.played)
		for j, v := range [3]float64{math.Round(m.OverAdmission), 100 * m.Shortfall, calls} {
			if v > r.figures[j] {
				r.figures[j], r.in[j] = v, troubles[t]
			}
		}
		if t == 0 {
			r.perRequest = m.RedisCalls / w.base.Traffic[0].Rate
		}
	}
}

// rule says which setting to take.
const rule = "To take (*): of those that miss nothing (fail-open only if no other does), the one with the fewest " +
	"calls per\nrequest; of those with at most 0.05 more, the uppermost, which is the plainest."

// choose rounds each figure and compares it with what is accepted. It takes a setting by the rule,
// or else the nearest, and reports whether that keeps all.
func (w *wish) choose() bool {
	least, excess := math.Inf(1), math.Inf(1)
	parts := [3]float64{float64(w.burst), 100, w.most[2]} // an excess is a part of these
	var some []int                                        // that miss nothing
	for i := range w.results {
		r, sum := &w.results[i], 0.0
		for j, v := range r.figures {
			if r.figures[j], _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64); r.figures[j] > w.most[j] {
				r.missed = append(r.missed, figures[j].heading)
				sum += (r.figures[j] - w.most[j]) / parts[j]
			}
		}
		if sum < excess {
			w.take, excess = i, sum
		}
		if r.missed == nil && (r.fleet.Mode != "open" || some == nil) {
			some, least = append(some, i), min(least, r.perRequest)
		}
	}
	for _, i := range some {
		if w.results[i].perRequest <= least+0.05 {
			w.take, w.kept = i, true
			break
		}
	}
	return w.kept
}
