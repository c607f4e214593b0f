package scenario

import (
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	micro  = Duration(time.Microsecond)
	milli  = Duration(time.Millisecond)
	second = Duration(time.Second)
	minute = 60 * second
	hour   = 60 * minute

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
	maxReply   = 100                   // characters of what Redis says
	nameRule   = "A-Z a-z 0-9 _ . -"   // as the limiter has it
)

// What holds when it is left out.
const (
	defaultWarmUp = 2 * second  // Scenario.WarmUp
	DefaultRTT    = 400 * micro // Net.RTT
	defaultMode   = "local"     // Fleet.Mode
	defaultBudget = 20 * milli  // as the limiter has it
)

// field is a parameter of a statement, which is also a field of its type and has the same name in JSON. The text form,
// Set, the checks and the documentation follow from it.
type field struct {
	name string
	spec
	left string // what leaving it out means, if there is something to say
	what string // in a line
}

// statement is a kind of line. Its path is the field of a Scenario that it fills.
type statement struct {
	name, form, path string

	words  []word  // what comes first
	fields []field // parameters, in any order
	needs  []string
	kinds  []Kind   // what its last word chooses: which of the parameters it takes
	always []string // which it takes of every kind
	parse  func(p *parser, s *line)
}

// word is a word of a statement before its parameters.
type word struct {
	path  string // below that of the statement's item
	field string // as errors call it
	read  func(item any, text string) (rule string)
	print func(item any) string
}

// lengthField is what stands behind run itself.
var lengthField = field{"run", duration(second, maxLength), "", "how long the run is"}

// statements are all that a line may be, in the order in which they are printed.
var statements = []statement{
	{name: "name", form: `"TEXT"`, path: "name", parse: (*parser).quoted},
	{name: "learn", form: `"TEXT"`, path: "learn", parse: (*parser).quoted},
	{
		name: "limit", form: "NAME rate=TOKENS/PERIOD …", path: "limits", words: []word{anyWord("name")},
		fields: []field{
			{"rate", tokenRate(), "", "tokens per period: 1000/s, 100/min, 5/h, 1/day, 10/100ms"},
			{"burst", whole(1, maxTokens), "as many as the rate has tokens", "tokens of a full bucket"},
		},
	},
	{
		name: "fleet", form: "n=PROCESSES …", path: "fleet", needs: []string{"n"},
		fields: []field{
			{"n", count(1, maxFleet), "", "processes at the start"},
			{"mode", oneWord("local", "open", "closed"), defaultMode, "fail mode of all policies: Policy.FailMode"},
			{
				"size", whole(0, maxTokens).or(-1, "leasing nothing"), "0, which follows demand",
				"tokens of a lease, at most a quarter of each burst: Lease.Size",
			},
			{"period", duration(5*milli, minute), "250ms", "how long a lease is to last: Lease.Period"},
			{
				"processes", count(0, 1<<20), "0, which is what presence says",
				"the least number of processes that each takes the fleet for: Options.Processes",
			},
			{"budget", duration(milli, maxBudget), "20ms", "longest that a caller waits: Options.Budget"},
			{
				"timeout", duration(milli, maxBudget), "50ms, or the budget if that is more",
				"longest that a call of Redis lasts, not below the budget: Options.Timeout",
			},
			{"maxkeys", count(1, 1<<30), "100000", "keys that a process keeps: Options.MaxKeys"},
			{"inflight", count(1, 1<<16), "64", "calls at one time per process and node: Options.MaxInFlight"},
			{"standing", oneWord("off", "split", "on"), "off", "standing shares of all policies: Policy.Standing"},
		},
	},
	{
		name: "traffic", form: "SHAPE …", path: "traffic", words: []word{anyWord("shape")}, kinds: Shapes,
		always: []string{"limit", "keys", "keyskew", "procskew", "cost", "maxcost", "cancel"},
		fields: []field{
			{"limit", nameSpec, "the limit, if there is one only", "name of the limit that it is held to"},
			{"rate", perSecond(leastRate, maxRate), "", "requests, over all processes and keys"},
			{"to", perSecond(leastRate, maxRate), "", "the other rate"},
			{"every", duration(milli, maxLength), "", "period of the pattern"},
			{"for", duration(milli, maxLength), "", "part of the period in which its requests come"},
			{"clients", count(1, maxKeys), "", "clients, each of which has one request at a time"},
			{"think", duration(0, hour), "0s", "mean time (exponential) from an answer to the client's next request"},
			{"retry", count(0, 1000), "0", "how often a refused request is made again"},
			{"keys", whole(1, maxKeys).or(-1, "a new key for each request"), "1", "keys asked for"},
			{"keyskew", number(0, 10), "0, all alike", "exponent of a Zipf distribution over the keys"},
			{"procskew", number(0, 10), "0, all alike", "exponent of a Zipf distribution over the processes"},
			{"cost", whole(1, maxTokens), "1", "tokens of a request"},
			{"maxcost", whole(1, maxTokens), "the cost", "costs are uniform from cost to this, not below cost"},
			{"cancel", ratio(0, 1), "0%", "of the requests: their caller leaves within a millisecond"},
		},
	},
	{
		name: "net", form: "rtt=TIME …", path: "net",
		fields: []field{
			{"rtt", duration(micro, 10*second), DefaultRTT.String(), "to Redis and back, at least"},
			{"jitter", duration(0, 10*second), "0s", "mean of what comes to it at random (exponential)"},
		},
	},
	{
		name: "at", form: "TIME KIND …", path: "faults", kinds: Kinds,
		words: []word{
			{"at", "time", readTime, func(item any) string { return item.(*Fault).At.String() }},
			anyWord("kind"),
		},
		fields: []field{
			{
				"for", duration(micro, maxLength), "to the end of the run",
				"how long it lasts; it must end within the run",
			},
			{"procs", some(maxFleet), "all", "which processes: a share of them or a number, drawn from the seed"},
			{"only", oneWord("requests", "replies"), "both", "one direction"},
			{"chance", ratio(leastShare, 1), "100%", "of the messages"},
			{"delay", duration(micro, hour), "", "time that comes to a round trip"},
			{"jitter", duration(0, hour), "0s", "mean of what comes to that at random (exponential)"},
			{"up", duration(milli, maxLength), "", "how long it is up each time"},
			{"down", duration(milli, maxLength), "", "how long it is down each time"},
			{"by", duration(-maxLength, maxLength).exceptZero(), "", "how far: forward, or back when negative"},
			{"lose", duration(micro, hour), "nothing is lost", "the writes of this last time are lost"},
			{"restart", duration(micro, maxLength), "never", "time until a new process comes"},
			{"every", duration(milli, maxLength), "", "time from one to the next"},
			{"n", count(1, maxFleet), "", "processes from then on"},
			{"keys", whole(1, maxLost), "", "how many keys"},
			{
				"error", text("1 to "+strconv.Itoa(maxReply)+" ASCII characters that begin with a word in capitals",
					isReply), "",
				"what Redis says, beginning with a word in capitals; in quotes if it is more than a word",
			},
		},
	},
	{
		name: "run", form: "TIME …", path: "run",
		words: []word{{
			"run", "run",
			func(item any, text string) string { return lengthField.read(item, text) },
			func(item any) string { return item.(*Scenario).Length.String() },
		}},
		fields: []field{{
			"warmup", duration(milli, maxLength), defaultWarmUp.String(),
			"from when on the run is measured, and may have faults; shorter than the run",
		}},
	},
	{
		name: "expect", form: "METRIC <= VALUE …", path: "expect",
		words: []word{anyWord("metric"), anyWord("op"), {"value", "value", readValue, printValue}},
		fields: []field{
			{"after", duration(milli, maxLength), "the warm-up", "from when it is measured, not before the warm-up"},
			{"before", duration(milli, maxLength), "the end", "until when"},
			{"limit", nameSpec, "the first", "name of the limit that is looked at"},
		},
	},
	{name: "sometimes", form: "HAPPENING …", path: "sometimes", parse: (*parser).sometimes},
	{name: "sweep", form: "PATH=VALUE,VALUE …", path: "sweep", parse: (*parser).sweep},
}

var nameSpec = text("1 to 64 of "+nameRule, isName)

// anyWord is a word that is checked later.
func anyWord(path string) word {
	return word{
		path, path,
		func(item any, text string) string { member(item, path).SetString(text); return "" },
		func(item any) string { return quoted(member(item, path).String()) },
	}
}

func readTime(item any, text string) (rule string) {
	var ok bool
	if item.(*Fault).At, ok = parseDuration(text); !ok {
		return "must be a duration, as in 20s or 1m30s"
	}
	return ""
}

func readValue(item any, text string) (rule string) {
	e := item.(*Expectation)
	if m, known := metric(e.Metric); known {
		e.Value, rule = m.Unit.parse(text)
	}
	return rule
}

func printValue(item any) string {
	e := item.(*Expectation)
	if m, known := metric(e.Metric); known {
		return m.Unit.Format(e.Value)
	}
	return formatPlain(e.Value)
}

// find is the statement of that name.
func find(name string) *statement {
	return &statements[slices.IndexFunc(statements, func(st statement) bool { return st.name == name })]
}

// items are what a scenario has of a statement: pointers, each with its path.
func (st *statement) items(s *Scenario) iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		switch v := member(s, st.path); v.Kind() {
		case reflect.Slice:
			for i := range v.Len() {
				if !yield(fmt.Sprintf("%s[%d]", st.path, i), v.Index(i).Addr().Interface()) {
					return
				}
			}
		case reflect.Struct:
			yield(st.path, v.Addr().Interface())
		default:
			yield("", s)
		}
	}
}

// once reports whether there can be one only.
func (st *statement) once() bool { return member(&Scenario{}, st.path).Kind() != reflect.Slice }

// takes returns the names of the parameters that an item may have and must have, and what takes them: the statement, or
// the item's kind. known is false if there is no such kind; then all are allowed.
func (st *statement) takes(item any) (what string, takes, needs []string, known bool) {
	if st.kinds != nil {
		name := member(item, st.words[len(st.words)-1].path).String()
		for i := range st.kinds {
			if k := &st.kinds[i]; k.Name == name {
				if takes = slices.Clone(k.Takes); k.Lasts {
					takes = append(takes, "for")
				}
				return name, append(takes, st.always...), k.Needs, true
			}
		}
	}
	return st.name, names(st.fields, func(f field) string { return f.name }), st.needs, st.kinds == nil
}

// text is an item in its canonical form, from one of its words on.
func (st *statement) text(item any, from int) string {
	var all []string
	for _, w := range st.words[from:] {
		all = append(all, w.print(item))
	}
	for i := range st.fields {
		f := &st.fields[i]
		if v := f.get(item); !isZero(v) {
			all = append(all, f.name+"="+quoted(f.format(v)))
		}
	}
	return strings.Join(all, " ")
}

// field is the parameter of that name, or nil.
func (st *statement) field(name string) *field {
	for i := range st.fields {
		if st.fields[i].name == name {
			return &st.fields[i]
		}
	}
	return nil
}

func (f *field) get(item any) any {
	if l, ok := item.(*Limit); ok && f.name == "rate" {
		return rate{l.Tokens, l.Per}
	}
	v := member(item, f.name)
	if v.Kind() == reflect.Int {
		return v.Int()
	}
	return v.Interface()
}

func (f *field) set(item, v any) {
	if r, ok := v.(rate); ok {
		l := item.(*Limit)
		l.Tokens, l.Per = r.tokens, r.per
		return
	}
	to := member(item, f.name)
	to.Set(reflect.ValueOf(v).Convert(to.Type()))
}

// read sets the field of an item to what text says. If that cannot be, it says by which rule and changes nothing.
func (f *field) read(item any, text string) (rule string) {
	v, ok := f.parse(text)
	if !ok {
		return "must be " + f.form
	}
	if rule = f.broken(v); rule == "" {
		f.set(item, v)
	}
	return rule
}

// broken is the rule that a value breaks, with what leaving it out means.
func (f *field) broken(v any) string {
	rule := f.spec.broken(v)
	if rule == "must be "+f.span && f.form != "" && f.left != "" {
		rule += ", or left out for " + f.left
	}
	return rule
}

// tagged has what tags found, by type.
var tagged sync.Map

// tags are the names that the fields of a struct have in JSON.
func tags(t reflect.Type) (all []string) {
	if known, ok := tagged.Load(t); ok {
		return known.([]string)
	}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		all = append(all, name)
	}
	tagged.Store(t, all)
	return all
}

// member is the field of an item that has this name in JSON.
func member(item any, name string) reflect.Value {
	v := reflect.ValueOf(item).Elem()
	return v.Field(slices.Index(tags(v.Type()), name))
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
