package scenario

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

const (
	micro  = Duration(time.Microsecond)
	milli  = Duration(time.Millisecond)
	second = Duration(time.Second)
	minute = 60 * second
	hour   = 60 * minute

	maxTokens  = 1 << 40    // as the limiter has it
	maxLength  = 24 * hour  // of a run, and of everything in it
	maxFleet   = 5000       // processes
	maxKeys    = 1_000_000  // of one stream of traffic
	maxPlaces  = 1 << 20    // as package atonce has it
	maxLost    = 10_000_000 // keys that are evicted or that a flood asks for
	maxRate    = 1e9        // requests per second
	leastRate  = 1e-6       // requests per second: one in 11 days
	leastShare = 1e-6       // of messages, and of processes
	maxBudget  = minute     // as the limiter has it
	maxValue   = 1e15       // of an expectation
	maxReply   = 100        // characters of what Redis says

	maxName, maxLearn = 100, 300 // characters

	maxLimits  = 16
	maxTraffic = 20
	maxFaults  = 200
	maxExpect  = 100
	maxAxes    = 8
	maxValues  = 100 // of an axis
	maxCells   = 600 // of a sweep: the product of its axes
)

// The values of fields that are left out.
const (
	defaultWarmUp = 2 * second  // Scenario.WarmUp
	DefaultRTT    = 400 * micro // Net.RTT
	defaultMode   = "local"     // Fleet.Mode
	defaultBudget = 20 * milli  // as the limiter has it
)

// field is a value of a mapping. It is also a field of a type, and has its name in JSON. Reading,
// writing, Set, the documentation and the schema follow from it.
type field struct {
	name string
	spec
	left string // what leaving it out means, if there is something to say
	what string // in a line
}

// mapping is a mapping of a scenario or, if there may be several, a list of mappings. Its path is
// the field of a Scenario that it fills, empty for the scenario itself.
type mapping struct {
	path   string
	most   int // elements of the list
	fields []field
	needs  []string
	by     string // the field that chooses a kind
	kinds  []Kind
}

// mappings are all mappings, but those whose names are not fixed.
var mappings = []mapping{
	{
		needs: []string{"name", "run"},
		fields: []field{
			{"name", printable(maxName), "", "what the scenario is called"},
			{"learn", printable(maxLearn), "", "what it shows, in a line"},
			{"run", duration(second, maxLength), "", "how long the run is"},
			{
				"start", instant(), "2000-01-01T00:00:00Z",
				"when the run begins: limits of days, weeks, months, quarters and years depend on it",
			},
			{
				"warmup", duration(milli, maxLength), defaultWarmUp.String(),
				"from when on the run is measured, and may have faults; shorter than the run",
			},
		},
	},
	{
		path: "limits", most: maxLimits, needs: []string{"name", "rate"},
		fields: []field{
			{"name", nameSpec, "", "name of the limit, and of its policy"},
			{"rate", limitText(), "", "tokens per period, as the limit of a policy file has them"},
			{"burst", whole(1, maxTokens), "as many as the rate has tokens", "tokens of a full bucket, of the first limit"},
			{"algorithm", oneWord(algorithms()...), lua.TokenBucket.String(), "how it counts: Policy.Algorithm"},
		},
	},
	{
		path: "at_once", needs: []string{"places"},
		fields: []field{
			{"places", whole(1, maxPlaces), "", "requests of a key that run at the same time, in all processes together"},
			{"life", duration(second, hour), "10s", "how long the places of a silent process are kept: atonce.Policy.Life"},
		},
	},
	{
		path: "fleet", needs: []string{"n"},
		fields: []field{
			{"n", whole(1, maxFleet), "", "processes at the start"},
			{"mode", oneWord("local", "open", "closed"), defaultMode, "fail mode of all policies: Policy.FailMode"},
			{
				"size", whole(0, maxTokens).or(-1, "leasing nothing"), "0, which follows demand",
				"tokens of a lease, at most a quarter of each burst: Lease.Size",
			},
			{"period", duration(5*milli, minute), "250ms", "how long a lease is to last: Lease.Period"},
			{
				"processes", whole(0, 1<<20), "0, which is what presence says",
				"the least number of processes that each takes the fleet for: Options.Processes",
			},
			{"budget", duration(milli, maxBudget), "20ms", "longest that a caller waits: Options.Budget"},
			{
				"timeout", duration(milli, maxBudget), "50ms, or the budget if that is more",
				"longest that a call of Redis lasts, not below the budget: Options.Timeout",
			},
			{"maxkeys", whole(1, 1<<30), "100000", "keys that a process keeps: Options.MaxKeys"},
			{"inflight", whole(1, 1<<16), "64", "calls at one time per process and node: Options.MaxInFlight"},
			{"standing", oneWord("off", "1/8", "1/4", "3/8", "1/2", "5/8", "3/4"), "off", "part of each limit that processes share: Policy.Standing"},
		},
	},
	{
		path: "traffic", most: maxTraffic, needs: []string{"shape"}, by: "shape", kinds: Shapes,
		fields: []field{
			{"shape", oneWord(kindNames(Shapes)...), "", "how the rate changes"},
			{"limit", nameSpec, "the limit, if there is one only", "name of the limit that it is held to"},
			{"rate", perSecond(leastRate, maxRate), "", "requests, over all processes and keys"},
			{"to", perSecond(leastRate, maxRate), "", "the other rate"},
			{"every", duration(milli, maxLength), "", "period of the pattern"},
			{"for", duration(milli, maxLength), "", "part of the period in which its requests come"},
			{"clients", whole(1, maxKeys), "", "clients, each of which has one request at a time"},
			{"think", duration(0, hour), "0s", "mean time (exponential) from an answer to the client's next request"},
			{"retry", whole(0, 1000), "0", "how often a refused request is made again"},
			{"keys", whole(1, maxKeys).or(-1, "a new key for each request"), "1", "keys asked for"},
			{"keyskew", number(0, 10), "0, all alike", "exponent of a Zipf distribution over the keys"},
			{"procskew", number(0, 10), "0, all alike", "exponent of a Zipf distribution over the processes"},
			{"cost", whole(1, maxTokens), "1", "tokens of a request"},
			{"maxcost", whole(1, maxTokens), "the cost", "costs are uniform from cost to this, not below cost"},
			{
				"runs", duration(micro, hour), "no time, and no place",
				"mean time (exponential) that a request runs: it has a place of at_once meanwhile",
			},
			{"cancel", ratio(0, 1), "0%", "of the requests: their caller leaves within a millisecond"},
		},
	},
	{
		path: "net",
		fields: []field{
			{"rtt", duration(micro, 10*second), DefaultRTT.String(), "to Redis and back, at least"},
			{"jitter", duration(0, 10*second), "0s", "mean of what comes to it at random (exponential)"},
		},
	},
	{
		path: "faults", most: maxFaults, needs: []string{"at", "kind"}, by: "kind", kinds: Kinds,
		fields: []field{
			{"at", duration(milli, maxLength), "", "when it begins: not before the warm-up ends"},
			{"kind", oneWord(kindNames(Kinds)...), "", "what happens"},
			{"for", duration(micro, maxLength), "to the end of the run", "how long it lasts; it must end within the run"},
			{"procs", some(maxFleet), "all", "which processes: a share of them or a number, drawn from the seed"},
			{"only", oneWord("requests", "replies"), "both", "one direction"},
			{"chance", ratio(leastShare, 1), "100%", "of the messages"},
			{"delay", duration(micro, hour), "", "time that comes to a round trip, or to what runs"},
			{"jitter", duration(0, hour), "0s", "mean of what comes to that at random (exponential)"},
			{"up", duration(milli, maxLength), "", "how long it is up each time"},
			{"down", duration(milli, maxLength), "", "how long it is down each time"},
			{"by", duration(-maxLength, maxLength).exceptZero(), "", "how far: forward, or back when negative"},
			{"lose", duration(micro, hour), "nothing is lost", "the writes of this last time are lost"},
			{"restart", duration(micro, maxLength), "never", "time until a new process comes"},
			{"every", duration(milli, maxLength), "", "time from one to the next"},
			{"n", whole(1, maxFleet), "", "processes from then on"},
			{"keys", whole(1, maxLost), "", "how many keys"},
			{"error", replySpec, "", "what Redis says, beginning with a word in capitals"},
		},
	},
}

// expectations are texts; these fields come after METRIC <= VALUE.
var expectations = mapping{fields: []field{
	{"after", duration(milli, maxLength), "the warm-up", "from when it is measured, not before the warm-up"},
	{"before", duration(milli, maxLength), "the end", "until when"},
	{"limit", nameSpec, "the first", "name of the limit that is looked at"},
}}

var (
	nameSpec  = text(64, "of A-Z a-z 0-9 _ . -", `^[A-Za-z0-9_.-]+$`) // as the limiter has it
	replySpec = text(maxReply, "ASCII characters that begin with a word in capitals", "^[A-Z][!-`{-~]*( [ -~]*)?$")
)

// find is the section of that path.
func find(path string) *mapping {
	return &mappings[slices.IndexFunc(mappings, func(m mapping) bool { return m.path == path })]
}

// items are pointers to what a scenario has of a section.
func (m *mapping) items(s *Scenario) (all []any) {
	switch {
	case m.path == "":
		return []any{s}
	case m.most == 0:
		return []any{member(s, m.path).Addr().Interface()}
	}
	v := member(s, m.path)
	for i := range v.Len() {
		all = append(all, v.Index(i).Addr().Interface())
	}
	return all
}

// add makes room for an item of the section.
func (m *mapping) add(s *Scenario) (item any) {
	if m.most > 0 {
		v := member(s, m.path)
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
	}
	all := m.items(s)
	return all[len(all)-1]
}

// kindOf is the kind of an item.
func (m *mapping) kindOf(item any) string {
	if m.by == "" {
		return ""
	}
	return member(item, m.by).String()
}

// takes returns the fields that an item may have and those that it must have, and the name of the
// section or kind that has them. If the item's kind is not known, it may have all fields.
func (m *mapping) takes(kind string) (what string, takes, needs []string) {
	for _, k := range m.kinds {
		if k.Name != kind {
			continue
		}
		for _, f := range m.fields {
			by := func(k Kind) bool { return slices.Contains(k.Takes, f.name) }
			if by(k) || !slices.ContainsFunc(m.kinds, by) {
				takes = append(takes, f.name)
			}
		}
		return kind, takes, slices.Concat(m.needs, k.Needs)
	}
	return m.path, names(m.fields, func(f field) string { return f.name }), m.needs
}

// field is the field of that name, or nil.
func (m *mapping) field(name string) *field {
	if i := slices.IndexFunc(m.fields, func(f field) bool { return f.name == name }); i >= 0 {
		return &m.fields[i]
	}
	return nil
}

func (f *field) get(item any) any {
	if l, ok := item.(*Limit); ok { // one limit, of which the burst is a field of its own
		switch f.name {
		case "rate":
			limit := l.Limit
			limit.Burst = 0
			return limit
		case "burst":
			return l.Limit.Burst
		}
	}
	v := member(item, f.name)
	if v.Kind() == reflect.Int {
		return v.Int()
	}
	return v.Interface()
}

// read sets the field of an item to what text says. If that cannot be, it says by which rule and
// changes nothing.
func (f *field) read(item any, text string) (rule string) {
	v, rule := f.spec.read(text)
	switch {
	case rule == "":
		f.set(item, v)
	case rule == "must be "+f.span && f.left != "" && f.words == nil:
		rule += ", or left out for " + f.left
	}
	return rule
}

func (f *field) set(item, v any) {
	if l, ok := item.(*Limit); ok {
		switch v := v.(type) {
		case tiered.Limit:
			v.Burst = cmp.Or(v.Burst, l.Limit.Burst)
			l.Limit = v
			return
		case int64:
			l.Limit.Burst = v
			return
		}
	}
	to := member(item, f.name)
	to.Set(reflect.ValueOf(v).Convert(to.Type()))
}

// tags are the names that the fields of an item have in JSON.
func tags(item any) (all []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(item).Elem()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		all = append(all, name)
	}
	return all
}

// member is the field of an item that has this name in JSON.
func member(item any, name string) reflect.Value {
	return reflect.ValueOf(item).Elem().Field(slices.Index(tags(item), name))
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
