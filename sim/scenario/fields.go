package scenario

import "time"

// field is a parameter of a statement, which is also a field of its type: one table for text, JSON, Set and the checks.
type field[T any] struct {
	name string         // in text and in JSON
	at   func(t *T) any // where its value is: *int, *int64, *float64, *Duration, *string, *Part or perPeriod
	span span
	what string // in a line
}

// span is the values that a field may have.
type span struct {
	min, max   int64    // of whole numbers and durations (in ns); of a Part's Count
	also       int64    // a whole number outside of that, or 0
	alsoMeans  string   // what that is
	least      float64  // of other numbers, and of a Part's Share
	most       float64  //
	scale      scale    // how other numbers are written
	words      []string // of strings; without them a string is a name, or free if most says how long
	left       string   // what leaving it out means, if there is something to say
	notZero    bool     // for what may be less than zero, and more
	notation   string   // instead of what the type says, in the documentation
	wholeMicro bool     // of durations: whole microseconds only
}

// scale is how a float64 is written.
type scale int

const (
	number    scale = iota // 1.1
	ratio                  // 5%
	perSecond              // 1000/s
)

// perPeriod is a limit's rate, which is two fields.
type perPeriod struct {
	tokens *int64
	per    *Duration
}

const (
	second = int64(time.Second)
	minute = 60 * second
	hour   = 60 * minute
	micro  = int64(time.Microsecond)
	milli  = int64(time.Millisecond)

	maxTokens  = 1 << 40               // as the limiter has it
	maxPer     = 100 * 365 * 24 * hour // as the limiter has it
	maxLength  = 24 * hour             // of a run, and of everything in it
	maxFleet   = 5000                  // processes
	maxKeys    = 1_000_000             // of one stream of traffic
	maxLost    = 10_000_000            // keys that are evicted or that a flood asks for
	maxRate    = 1e9                   // requests per second
	leastRate  = 1e-6                  // requests per second: one in 11 days
	leastShare = 1e-6                  // of messages, and of processes
	maxBudget  = minute                // as the limiter has it
	maxValue   = 1e15                  // of an expectation
	nameRule   = "A-Z a-z 0-9 _ . -"   // as the limiter has it
)

// What holds when it is left out.
const (
	DefaultWarmUp = Duration(2 * time.Second)        // Scenario.WarmUp
	DefaultRTT    = Duration(400 * time.Microsecond) // Net.RTT
	DefaultMode   = "local"                          // Fleet.Mode

	defaultBudget  = 20 * time.Millisecond // as the limiter has it
	defaultTimeout = 50 * time.Millisecond // as the limiter has it
)

var modes = []string{"local", "open", "closed"}

var limitFields = []field[Limit]{
	{"rate", func(l *Limit) any { return perPeriod{&l.Tokens, &l.Per} }, span{}, "tokens per period: 1000/s, 100/min, 5/h, 1/day, 10/100ms"},
	{"burst", func(l *Limit) any { return &l.Burst }, span{min: 1, max: maxTokens, left: "as many as the rate has tokens"}, "tokens of a full bucket"},
}

var fleetFields = []field[Fleet]{
	{"n", func(f *Fleet) any { return &f.N }, span{min: 1, max: maxFleet}, "processes at the start"},
	{"mode", func(f *Fleet) any { return &f.Mode }, span{words: modes, left: DefaultMode}, "fail mode of all policies: Policy.FailMode"},
	{
		"size", func(f *Fleet) any { return &f.Size },
		span{min: 0, max: maxTokens, also: -1, alsoMeans: "leasing nothing", left: "0, which follows demand"},
		"tokens of a lease, at most a quarter of each burst: Lease.Size",
	},
	{"period", func(f *Fleet) any { return &f.Period }, span{min: 5 * milli, max: minute, left: "250ms"}, "how long a lease is to last: Lease.Period"},
	{
		"processes", func(f *Fleet) any { return &f.Processes },
		span{min: 0, max: 1 << 20, left: "0, which is what presence says"},
		"the least number of processes that each takes the fleet for: Options.Processes",
	},
	{"budget", func(f *Fleet) any { return &f.Budget }, span{min: milli, max: maxBudget, left: "20ms"}, "longest that a caller waits: Options.Budget"},
	{
		"timeout", func(f *Fleet) any { return &f.Timeout },
		span{min: milli, max: maxBudget, left: "50ms, or the budget if that is more"},
		"longest that a call of Redis lasts, not below the budget: Options.Timeout",
	},
	{"maxkeys", func(f *Fleet) any { return &f.MaxKeys }, span{min: 1, max: 1 << 30, left: "100000"}, "keys that a process keeps: Options.MaxKeys"},
	{"inflight", func(f *Fleet) any { return &f.InFlight }, span{min: 1, max: 1 << 16, left: "64"}, "calls at one time per process and node: Options.MaxInFlight"},
}

var trafficFields = []field[Traffic]{
	{"limit", func(t *Traffic) any { return &t.Limit }, span{left: "the limit, if there is one only"}, "name of the limit that it is held to"},
	{"rate", func(t *Traffic) any { return &t.Rate }, span{least: leastRate, most: maxRate, scale: perSecond}, "requests, over all processes and keys"},
	{"to", func(t *Traffic) any { return &t.To }, span{least: leastRate, most: maxRate, scale: perSecond}, "the other rate"},
	{"every", func(t *Traffic) any { return &t.Every }, span{min: milli, max: maxLength}, "period of the pattern"},
	{"for", func(t *Traffic) any { return &t.For }, span{min: milli, max: maxLength}, "part of the period in which its requests come"},
	{"clients", func(t *Traffic) any { return &t.Clients }, span{min: 1, max: maxKeys}, "clients, each of which has one request at a time"},
	{"think", func(t *Traffic) any { return &t.Think }, span{min: 0, max: hour, left: "0s"}, "mean time (exponential) from an answer to the client's next request"},
	{"retry", func(t *Traffic) any { return &t.Retry }, span{min: 0, max: 1000, left: "0"}, "how often a refused request is made again"},
	{"keys", func(t *Traffic) any { return &t.Keys }, span{min: 1, max: maxKeys, also: -1, alsoMeans: "a new key for each request", left: "1"}, "keys asked for"},
	{"keyskew", func(t *Traffic) any { return &t.KeySkew }, span{least: 0, most: 10, left: "0, all alike"}, "exponent of a Zipf distribution over the keys"},
	{"procskew", func(t *Traffic) any { return &t.ProcSkew }, span{least: 0, most: 10, left: "0, all alike"}, "exponent of a Zipf distribution over the processes"},
	{"cost", func(t *Traffic) any { return &t.Cost }, span{min: 1, max: maxTokens, left: "1"}, "tokens of a request"},
	{"maxcost", func(t *Traffic) any { return &t.MaxCost }, span{min: 1, max: maxTokens, left: "the cost"}, "costs are uniform from cost to this, not below cost"},
	{"cancel", func(t *Traffic) any { return &t.Cancel }, span{least: 0, most: 1, scale: ratio, left: "0%"}, "of the requests: their caller leaves within a millisecond"},
}

var netFields = []field[Net]{
	{"rtt", func(n *Net) any { return &n.RTT }, span{min: micro, max: 10 * second, left: DefaultRTT.String()}, "to Redis and back, at least"},
	{"jitter", func(n *Net) any { return &n.Jitter }, span{min: 0, max: 10 * second, left: "0s"}, "mean of what comes to it at random (exponential)"},
}

var faultFields = []field[Fault]{
	{"for", func(f *Fault) any { return &f.For }, span{min: micro, max: maxLength, left: "to the end of the run"}, "how long it lasts; it must end within the run"},
	{"procs", func(f *Fault) any { return &f.Procs }, span{min: 1, max: maxFleet, least: leastShare, most: 1, left: "all"}, "which processes: a share of them or a number, drawn from the seed"},
	{"only", func(f *Fault) any { return &f.Only }, span{words: []string{"requests", "replies"}, left: "both"}, "one direction"},
	{"chance", func(f *Fault) any { return &f.Chance }, span{least: leastShare, most: 1, scale: ratio, left: "100%"}, "of the messages"},
	{"delay", func(f *Fault) any { return &f.Delay }, span{min: micro, max: hour}, "time that comes to a round trip"},
	{"jitter", func(f *Fault) any { return &f.Jitter }, span{min: 0, max: hour, left: "0s"}, "mean of what comes to that at random (exponential)"},
	{"up", func(f *Fault) any { return &f.Up }, span{min: milli, max: maxLength}, "how long it is up each time"},
	{"down", func(f *Fault) any { return &f.Down }, span{min: milli, max: maxLength}, "how long it is down each time"},
	{"by", func(f *Fault) any { return &f.By }, span{min: -maxLength, max: maxLength, notZero: true}, "how far: forward, or back when negative"},
	{"lose", func(f *Fault) any { return &f.Lose }, span{min: micro, max: hour, left: "nothing is lost"}, "the writes of this last time are lost"},
	{"restart", func(f *Fault) any { return &f.Restart }, span{min: micro, max: maxLength, left: "never"}, "time until a new process comes"},
	{"every", func(f *Fault) any { return &f.Every }, span{min: milli, max: maxLength}, "time from one to the next"},
	{"n", func(f *Fault) any { return &f.N }, span{min: 1, max: maxFleet}, "processes from then on"},
	{"keys", func(f *Fault) any { return &f.Keys }, span{min: 1, max: maxLost}, "how many keys"},
	{"error", func(f *Fault) any { return &f.Error }, span{most: 100, notation: `"TEXT"`}, "what Redis says, beginning with a word in capitals; in quotes if it is more than a word"},
}

var expectFields = []field[Expectation]{
	{"after", func(e *Expectation) any { return &e.After }, span{min: milli, max: maxLength, left: "the warm-up"}, "from when it is measured, not before the warm-up"},
	{"before", func(e *Expectation) any { return &e.Before }, span{min: milli, max: maxLength, left: "the end"}, "until when"},
	{"limit", func(e *Expectation) any { return &e.Limit }, span{left: "the first"}, "name of the limit that is looked at"},
}

var runFields = []field[Scenario]{
	{
		"warmup", func(s *Scenario) any { return &s.WarmUp },
		span{min: milli, max: maxLength, left: DefaultWarmUp.String()},
		"from when on the run is measured, and may have faults; shorter than the run",
	},
}

// lengthField is what stands behind run itself.
var lengthField = field[Scenario]{"run", func(s *Scenario) any { return &s.Length }, span{min: second, max: maxLength}, "how long the run is"}

// Shape is how the rate of traffic changes, and what a statement of it takes besides limit, keys, keyskew, procskew, cost,
// maxcost and cancel.
type Shape struct {
	Name  string
	Takes []string // parameters that must be given, and those that may
	Needs []string // of these, those that must be
	What  string   // in a line
}

// Shapes are all shapes of traffic.
var Shapes = []Shape{
	{"poisson", []string{"rate"}, []string{"rate"}, "requests at random times, at the same rate all the time"},
	{"bursts", []string{"rate", "every", "for"}, []string{"rate", "every", "for"}, "all requests of a period within a part of it: rate is the mean over the period"},
	{"ramp", []string{"rate", "to"}, []string{"rate", "to"}, "from rate at the start, evenly, to another at the end"},
	{"diurnal", []string{"rate", "to", "every"}, []string{"rate", "to", "every"}, "a wave between the two rates, beginning at rate"},
	{
		"closed",
		[]string{"clients", "think", "retry"},
		[]string{"clients"},
		"clients that ask, wait for the answer, think, and ask again; one that is refused asks again after RetryAfter, at least after think",
	},
}

// always is what traffic of every shape takes.
var always = []string{"limit", "keys", "keyskew", "procskew", "cost", "maxcost", "cancel"}

// shapeTakes are the parameters of a shape, those of its own first; nil if there is no such shape.
func shapeTakes(name string) (takes, needs []string, known bool) {
	for _, s := range Shapes {
		if s.Name == name {
			return append(s.Takes[:len(s.Takes):len(s.Takes)], always...), s.Needs, true
		}
	}
	return nil, nil, false
}

// kindTakes are the parameters of a kind of fault, for= among them if it lasts; nil if there is no such kind.
func kindTakes(name string) (takes, needs []string, known bool) {
	for _, k := range Kinds {
		if k.Name == name {
			takes = append([]string{}, k.Takes...)
			if k.Lasts {
				takes = append(takes, "for")
			}
			return takes, k.Needs, true
		}
	}
	return nil, nil, false
}

// names of the fields of a statement.
func names[T any](fields []field[T]) []string {
	all := make([]string, len(fields))
	for i, f := range fields {
		all[i] = f.name
	}
	return all
}

// find is the field of that name, or nil.
func find[T any](fields []field[T], name string) *field[T] {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i]
		}
	}
	return nil
}

// allNames of a table of the vocabulary.
func allNames[T any](table []T, name func(T) string) []string {
	all := make([]string, len(table))
	for i, t := range table {
		all[i] = name(t)
	}
	return all
}

func kindNames() []string   { return allNames(Kinds, func(k Kind) string { return k.Name }) }
func shapeNames() []string  { return allNames(Shapes, func(s Shape) string { return s.Name }) }
func metricNames() []string { return allNames(Metrics, func(m Metric) string { return m.Name }) }

// metric is the metric of that name.
func metric(name string) (m Metric, known bool) {
	for _, m := range Metrics {
		if m.Name == name {
			return m, true
		}
	}
	return m, false
}
