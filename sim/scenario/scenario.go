package scenario

import (
	"cmp"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Scenario is a rehearsal. The zero value is not valid; see Validate for what must be there.
type Scenario struct {
	Name  string `json:"name"`            // 1 … 100 characters
	Learn string `json:"learn,omitempty"` // what it shows, in a line

	Limits  []Limit   `json:"limits"`
	AtOnce  AtOnce    `json:"at_once,omitzero"`
	Fleet   Fleet     `json:"fleet"`
	Traffic []Traffic `json:"traffic"`
	Net     Net       `json:"net"`
	Faults  []Fault   `json:"faults,omitempty"` // by time
	Length  Duration  `json:"run"`              // 1 s … 24 h
	Start   time.Time `json:"start,omitzero"`   // when the run begins, for windows of the calendar; zero is 2000 in UTC
	// from when on the run is measured: processes have found each other; 0 is 2 s
	WarmUp Duration      `json:"warmup,omitempty"`
	Expect []Expectation `json:"expect,omitempty"`
	// what must happen at least once, or the run shows nothing: see Happenings
	Sometimes []string `json:"sometimes,omitempty"`
	Sweep     []Axis   `json:"sweep,omitempty"`
}

// Limit is the limit of a policy, and how it counts. In a text the burst is a field of its own.
type Limit struct {
	Name      string       `json:"name"` // of the policy
	Limit     tiered.Limit `json:"rate"`
	Algorithm string       `json:"algorithm,omitempty"` // in words: "fixed window"; empty is a token bucket
}

// Policy returns the policy, with defaults for what a limit does not say.
func (l *Limit) Policy() tiered.Policy {
	a, _ := lua.Parse(cmp.Or(l.Algorithm, lua.TokenBucket.String()))
	return tiered.Policy{Name: l.Name, Limit: l.Limit, Algorithm: tiered.Algorithm(a)}
}

// Leased reports whether processes can lease tokens of the limit.
func (l *Limit) Leased() bool { return lua.Algorithm(l.Policy().Algorithm).Has(lua.Leased) }

// Most returns how many tokens are admitted at once: by several limits, as many as the smallest
// burst has.
func (l *Limit) Most() int64 {
	most := int64(-1)
	for _, one := range l.Limit.Each() {
		if n := cmp.Or(one.Burst, one.Tokens); most < 0 || n < most {
			most = n
		}
	}
	return most
}

// String is the limit as people write it: "10/s burst 20 and 1000/h", "10000/month, fixed window".
func (l *Limit) String() string {
	text := l.Limit.String()
	if a := l.Policy().Algorithm; a != tiered.TokenBucket {
		text += ", " + a.String()
	}
	return text
}

// AtOnce is a policy of how many requests of a key run at the same time. It holds for the streams
// that say how long theirs run. The zero value is none.
type AtOnce struct {
	Places int      `json:"places,omitempty"` // of each key
	Life   Duration `json:"life,omitempty"`   // of the places of a silent process; 0 is 10 s
}

// Fleet is the processes and how each is set up. A field that is 0 has the limiter's own default.
type Fleet struct {
	N         int      `json:"n"`                   // 1 … 5000, at the start
	Mode      string   `json:"mode,omitempty"`      // local (default), open, closed
	Size      int64    `json:"size,omitempty"`      // of a lease, tokens; 0 follows demand, -1 leases nothing
	Period    Duration `json:"period,omitempty"`    // that a lease is to last
	Processes int      `json:"processes,omitempty"` // the floor of the fleet's size: Options.Processes
	Budget    Duration `json:"budget,omitempty"`
	Timeout   Duration `json:"timeout,omitempty"`
	MaxKeys   int      `json:"maxkeys,omitempty"`
	InFlight  int      `json:"inflight,omitempty"` // Options.MaxInFlight
	Standing  string   `json:"standing,omitempty"` // off (default), 1/8 … 3/4
}

// Traffic is a stream of requests. They come at random times (Poisson); [Shapes] says how the rate
// changes, and what each shape takes.
type Traffic struct {
	Shape    string   `json:"shape"`
	Limit    string   `json:"limit,omitempty"`    // name; may be left out when there is one limit
	Rate     float64  `json:"rate,omitempty"`     // requests per second, over all processes
	To       float64  `json:"to,omitempty"`       // of ramp and diurnal
	Every    Duration `json:"every,omitempty"`    // the period of bursts and diurnal
	For      Duration `json:"for,omitempty"`      // of bursts
	Clients  int      `json:"clients,omitempty"`  // of closed
	Think    Duration `json:"think,omitempty"`    // of closed
	Retry    int      `json:"retry,omitempty"`    // of closed
	Keys     int64    `json:"keys,omitempty"`     // 1 … 10⁶, 0 is 1; -1 is a new key for each request
	KeySkew  float64  `json:"keyskew,omitempty"`  // exponent of a Zipf distribution over the keys; 0 is uniform
	ProcSkew float64  `json:"procskew,omitempty"` // the same over the processes
	Cost     int64    `json:"cost,omitempty"`     // tokens per request, 0 is 1
	MaxCost  int64    `json:"maxcost,omitempty"`  // uniform from Cost to here
	Runs     Duration `json:"runs,omitempty"`     // mean time that an admitted request runs, with a place of AtOnce
	Cancel   float64  `json:"cancel,omitempty"`   // part of the requests whose caller leaves within a millisecond
}

// Net is the way to Redis and back, without faults. Jitter is the mean of an exponential
// distribution on top.
type Net struct {
	RTT    Duration `json:"rtt,omitempty"` // 0 is 400us
	Jitter Duration `json:"jitter,omitempty"`
}

// Fault is something that goes wrong. [Kinds] says which kinds there are and what each takes.
type Fault struct {
	At   Duration `json:"at"`
	Kind string   `json:"kind"`
	For  Duration `json:"for,omitempty"`

	Procs   Part     `json:"procs,omitzero"`    // which processes: 10% or 3; none is all
	Only    string   `json:"only,omitempty"`    // blackhole: "requests" or "replies"; empty is both
	Chance  float64  `json:"chance,omitempty"`  // lose, cut: part of the messages
	Delay   Duration `json:"delay,omitempty"`   // latency: more, there and back together; slow: more for each run
	Jitter  Duration `json:"jitter,omitempty"`  // latency: the mean of what comes to it at random
	Up      Duration `json:"up,omitempty"`      // flap
	Down    Duration `json:"down,omitempty"`    // flap
	By      Duration `json:"by,omitempty"`      // clock: forward, or back when negative
	Lose    Duration `json:"lose,omitempty"`    // failover: the last writes, so many of time
	Restart Duration `json:"restart,omitempty"` // crash, crashloop: after this a new process comes; 0 is never
	Every   Duration `json:"every,omitempty"`   // crashloop, deploy: one process after the other
	N       int      `json:"n,omitempty"`       // scale: the fleet's size from then on
	Keys    int64    `json:"keys,omitempty"`    // evict, flood: how many
	Error   string   `json:"error,omitempty"`   // refuse: what Redis says: LOADING, READONLY, OOM, …
}

// Part is some of the processes: a share of them (0 < Share ≤ 1) or a number. The zero value is
// all.
type Part struct {
	Share float64 `json:"share,omitempty"`
	Count int     `json:"count,omitempty"`
}

// Expectation is a bound on a metric, over all of the run from the warm-up on, or from After to
// Before of it. In a text it is METRIC <= VALUE. See [Metrics] for names and units.
type Expectation struct {
	Metric string   `json:"metric"`
	Op     string   `json:"op"`    // <=, >=
	Value  float64  `json:"value"` // in the metric's unit: tokens, parts of one, seconds, per second
	After  Duration `json:"after,omitempty"`
	Before Duration `json:"before,omitempty"`
	Limit  string   `json:"limit,omitempty"` // of which limit; empty is the first one
}

// Axis is a field that a sweep varies. Path is as [Scenario.Set] takes it.
type Axis struct {
	Path   string   `json:"path"`
	Values []string `json:"values"`
}

// Duration is a time.Duration that is written without parts that are zero: 1.5s, 300us, 1m.
type Duration time.Duration
