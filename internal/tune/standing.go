package tune

import (
	"fmt"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Standing is what standing shares change: see tiered.Policy.Standing. It is from two runs of the advised choice
// without a fault, which differ in the option only.
type Standing struct {
	Impossible    string // why the policy cannot have them; then the rest is zero
	Without, With Load
	Least         float64 // part of the limit that a user has at least who always meets one process
}

// Load is what decisions cost.
type Load struct {
	Calls float64 // of Redis per decision
	Waits float64 // part of the decisions that wait for Redis
}

const (
	// sharesBegin is the time until all processes have their part of the shares: the table of fractions lends nothing
	// in its first 65 s.
	sharesBegin = 75 * time.Second

	// A share fills as slowly as its limit refills. These bound how long a run waits for that, how long it is for all
	// processes together, and how many requests it has.
	mostFill        = time.Hour
	mostProcessTime = 100_000 * time.Second
	mostRequests    = 60_000

	ofRedis = 7. / 8 // the part of a limit that Redis has

	worthwhile = 0.05 // calls per decision: to save fewer is not worth an option
)

// standing finds out what standing shares change for a choice.
func (q *Question) standing(c Choice) (s Standing, err error) {
	limit, n := q.Limit, int64(q.Processes)
	per := time.Duration(limit.Per)
	policy := tiered.Policy{
		Name: "x", Limit: tiered.Limit{Tokens: limit.Tokens, Per: per, Burst: limit.Burst}, Standing: tiered.StandingOn,
	}
	if err := policy.Validate(); err != nil {
		return Standing{Impossible: err.Error()}, nil
	}
	if limit.Burst < 8*n {
		return Standing{Impossible: fmt.Sprintf(
			"the burst is %d: must be at least %d for %d processes, or no share holds a token", limit.Burst, 8*n, n)}, nil
	}
	fill := time.Duration(min(float64(per)*float64(limit.Burst)/float64(limit.Tokens), float64(mostFill)))
	warm := (sharesBegin + min(fill, mostProcessTime/time.Duration(n))).Round(time.Second)
	slower := *q
	if q.Shape == "ramp" { // its end is no measure of all of it
		slower.Shape = "steady"
	}
	one, err := slower.scenario(c, "none", time.Duration(q.Outage))
	if err != nil {
		return s, err
	}
	length := warm + time.Duration(one.Length)
	slower.Requests = min(q.Requests, mostRequests/length.Seconds())
	var both []*scenario.Scenario
	for _, standing := range []string{"off", "on"} {
		one, err := slower.scenario(c, "none", time.Duration(q.Outage))
		if err != nil {
			return s, err
		}
		one.Fleet.Standing, one.Length, one.WarmUp = standing, scenario.Duration(length), scenario.Duration(warm)
		both = append(both, one)
	}
	reports, err := sim.RunAll(both, &sim.Options{Seed: q.Seed})
	if err != nil {
		return s, err
	}
	load := func(r *measure.Report) Load {
		decisions := float64(r.Metrics.Offered) / (float64(q.Cost+q.MaxCost) / 2)
		return Load{r.Metrics.RedisCalls * (length - warm).Seconds() / max(decisions, 1), max(r.Metrics.Waited, 0)}
	}
	return Standing{"", load(reports[0]), load(reports[1]), ofRedis + (1-ofRedis)/float64(n)}, nil
}

// Pays reports whether standing shares save at least half of the calls, and enough of them.
func (s *Standing) Pays() bool {
	return s.With.Calls <= min(s.Without.Calls/2, s.Without.Calls-worthwhile)
}

// String returns what standing shares change, in a line.
func (s *Standing) String() string {
	if s.Impossible != "" {
		return "Standing shares are not possible: " + s.Impossible
	}
	advice := "They do not pay."
	if s.Pays() {
		advice = "They pay: see docs/standing.md."
	}
	return fmt.Sprintf("Standing shares: %s calls of Redis per decision instead of %s, "+
		"%s of the requests wait instead of %s, and a user who always meets one process has at least %s of the limit. %s",
		measure.Figure(s.With.Calls, scenario.Count), measure.Figure(s.Without.Calls, scenario.Count),
		measure.Figure(s.With.Waits, scenario.Ratio), measure.Figure(s.Without.Waits, scenario.Ratio),
		measure.Figure(s.Least, scenario.Ratio), advice)
}
