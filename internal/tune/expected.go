package tune

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// An estimate needs these properties of the shipped limiter.
const (
	trips       = 3                     // failed calls that open a breaker
	callTimeout = 50 * time.Millisecond // Options.Timeout
	retryWithin = time.Second           // a failed call is made again
	denialLasts = 5 * time.Second       // that Redis refused is believed for so long at most
)

// perKey is the demand of one key under a choice, in tokens and seconds.
type perKey struct {
	demand, rate, burst float64 // tokens per second, and tokens
	processes           float64
	requests            float64 // of a process, per second
	lease               float64 // tokens; 0 is direct takes
	between             float64 // s, from a call of a process to its next one, if there is a request then
}

// perKey reckons with the requests that are simulated, of which one may stand for several.
func (q *Question) perKey(c Choice) perKey {
	_, many := q.scaleDown()
	n := float64(q.Processes)
	k := perKey{
		rate: float64(q.Limit.Tokens) / time.Duration(q.Limit.Per).Seconds(), burst: float64(q.Limit.Burst),
		processes: n,
	}
	k.demand = q.Demand * k.rate
	cost := float64(q.Cost+q.MaxCost) / 2 * float64(many)
	k.requests = k.demand / cost / n
	period := min(time.Duration(cmp.Or(c.Period, defaultPeriod)).Seconds(), k.burst/(4*k.rate))
	own := k.demand / n // of a process
	follows := own * period
	switch {
	case c.Size > 0:
		k.lease = min(max(float64(c.Size), float64(q.MaxCost*many)), k.burst/4)
	case c.Size == 0 && follows >= max(2, float64(q.MaxCost*many)): // else each request takes its own
		k.lease = min(max(1.25*follows, float64(q.MaxCost*many)), k.burst/4) // a quarter of it is the low-water mark
	}
	switch {
	case k.lease == 0 && k.demand > k.rate:
		k.between = min(cost/k.rate, denialLasts.Seconds())
	case k.demand > k.rate:
		k.between = period // after a lease that was smaller than wanted
	case c.Size > 0:
		k.between = k.lease / own
	case k.lease > 0:
		k.between = period
	}
	return k
}

// expected returns the estimates for what was advised, and for the best choices of the fail modes that they are about,
// each beside the measured value. An estimate is left out if its mode was not in the last round, or its fault was not
// asked for.
func (a *Answer) expected() (all []measure.Expected) {
	q := &a.Question
	keys, many := q.scaleDown()
	simulated := float64(max(1, q.Keys/keys))
	outage := time.Duration(q.Outage).Seconds()
	add := func(name string, atMost bool, what string, u scenario.Unit, value, measured float64) {
		all = append(all, measure.Expected{
			Name: name, What: what, AtMost: atMost, Value: value, Measured: measured,
			Text: measure.Figure(value, u), MeasuredText: measure.Figure(measured, u),
		})
	}
	k := q.perKey(a.Advised.Choice)
	calls := simulated * k.processes / (k.between + 1/k.requests)
	if m, ok := a.Advised.byFault["none"]; ok {
		add("redis_calls", false, "keys × processes ÷ (time from a call of a process to its next + time from request to request of a process), without a fault",
			scenario.PerSec, calls*float64(keys), m.RedisCalls*float64(keys))
	}
	if k.lease > 0 {
		follows := a.Advised.Size == 0 // then a lease is larger for a while when demand is
		add("held", !follows, "keys × processes × lease, and never more than the burst of each key: tokens that lie in processes",
			scenario.Tokens, simulated*min(k.processes*k.lease, k.burst), float64(a.Advised.held))
	}
	if m, ok := a.Advised.byFault["blackhole"]; ok && m.Detect >= 0 {
		gap := k.processes / calls
		add("detect", false, fmt.Sprintf("until the last breaker opens: %d × the timeout of %v, and until each of these calls is due: once the time between two calls of a process, and twice at most a second", trips, callTimeout),
			scenario.Seconds, trips*callTimeout.Seconds()+gap+(trips-1)*min(gap, retryWithin.Seconds()), m.Detect/1000)
	}
	if r := a.bestOf("open"); r != nil {
		if m, ok := r.byFault["blackhole"]; ok {
			left := max(0, k.burst-max(0, k.demand-k.rate)*2*margin(time.Duration(q.Outage)).Seconds())
			add("open", false, "(demand − rate) × outage − what is left of the burst when it begins: what fail-open would admit beyond the limit of a key",
				scenario.Tokens, max(0, (k.demand-k.rate)*outage-left), m.OverAdmission)
		}
	}
	if r := a.bestOf("local"); r != nil {
		if m, ok := r.byFault["blackhole"]; ok {
			most := k.rate*outage + max(k.burst, k.processes*float64(many))
			add("local", true, "rate × outage + the larger of burst and processes, or all that is asked for: what fail-local would admit of a key without Redis",
				scenario.Tokens, min(most, k.demand*outage), float64(m.Alone)/simulated)
		}
	}
	return all
}

// bestOf returns the best result of a fail mode in the last round, nil if there is none. What was advised is the best
// of its own mode.
func (a *Answer) bestOf(mode string) *Result {
	i := slices.IndexFunc(a.Last, func(r Result) bool { return r.mode() == mode })
	if i < 0 {
		return nil
	}
	return &a.Last[i]
}
