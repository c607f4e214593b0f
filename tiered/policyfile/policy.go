package policyfile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// policy is a policy as a file says it.
type policy struct {
	tiered.Policy
	keys   []keyLimit
	at     map[string]*yaml.Node // the places of its fields by their names in Policy, and of itself by ""
	unread map[string]bool       // fields that could not be read, or are wrong
	could  []tiered.Policy       // what couldBe returned
}

// policyFields has the fields of a policy, in the order in which they are read and written. For a
// new field of [tiered.Policy], add a line here and an entry to schema.json.
// TestEveryFieldOfAPolicy says what else there is.
var policyFields = []policyField{
	simple("name", "Name", func(p *policy) *string { return &p.Name }, text, yamlText, "a"),
	simple("limit", "Limit", func(p *policy) *tiered.Limit { return &p.Limit }, tiered.ParseLimit, yamlString,
		tiered.PerSecond(1), tiered.PerDay(1<<30), tiered.Limit{Tokens: 1, Per: time.Second, Burst: 1 << 30}, tiered.Unlimited()),
	special("plans", "Plans", func(p *policy) *map[string]tiered.Limit { return &p.Plans }, (*policy).readPlans, yamlPlans),
	simple("algorithm", "Algorithm", func(p *policy) *tiered.Algorithm { return &p.Algorithm }, algorithm, yamlString,
		algorithms()...),
	simple("calendar", "Calendar", func(p *policy) *bool { return &p.Calendar }, boolean, yamlValue).
		onlyIf(func(p *policy) bool { return p.Calendar || p.has(lua.Phased) }),
	simple("fail_mode", "FailMode", func(p *policy) *tiered.FailMode { return &p.FailMode }, word(failModes), yamlFor(failModes)),
	simple("standing", "Standing", func(p *policy) *float64 { return &p.Standing }, word(defaults.Parts), yamlFor(defaults.Parts)),
	simple("shadow", "Shadow", func(p *policy) *bool { return &p.Shadow }, boolean, yamlValue),
	simple("max_debt", "MaxDebt", func(p *policy) *int64 { return &p.MaxDebt }, whole, yamlMaxDebt).
		onlyIf(func(p *policy) bool { return p.has(lua.Owes) }),
	{"lease", "Lease", func(p *policy, r *reader, path string, n *yaml.Node) {
		p.readFields(r, path, n, leaseFields)
	}, (*policy).yamlLease, nil},
	ofKeys("keys", false),
	ofKeys("prefixes", true),
}

// leaseFields are those of its lease, and allFields are both.
var leaseFields = []policyField{
	simple("size", "Lease.Size", func(p *policy) *int64 { return &p.Lease.Size }, leaseSize,
		yamlFor(map[string]int64{"none": tiered.NoLease})),
	simple("period", "Lease.Period", func(p *policy) *time.Duration { return &p.Lease.Period }, duration, yamlValue),
}

var allFields = slices.Concat(policyFields, leaseFields)

// policyField is a field of a policy in a file.
type policyField struct {
	word, of string // in the file, and in [tiered.Policy] or its Lease
	read     func(p *policy, r *reader, path string, n *yaml.Node)
	write    func(*policy) *yaml.Node // with a comment; an empty list or mapping is not written
	standIns []func(*policy)          // each sets a value that it could have if it is unread; none if what was read will do
}

// special returns a field with a reader of its own. Unread, it could have each of some values, or
// else the zero value.
func special[T any](
	word, of string, in func(*policy) *T, read func(*policy, *reader, string, *yaml.Node), write func(T) *yaml.Node, standIns ...T,
) policyField {
	f := policyField{word, of, read, func(p *policy) *yaml.Node { return write(*in(p)) }, nil}
	for _, value := range append(standIns, *new(T))[:max(1, len(standIns))] {
		f.standIns = append(f.standIns, func(p *policy) { *in(p) = value })
	}
	return f
}

// simple is special for a field that is a text.
func simple[T any](
	word, of string, in func(*policy) *T, parse func(string) (T, error), write func(T) *yaml.Node, standIns ...T,
) policyField {
	read := func(p *policy, r *reader, path string, n *yaml.Node) { *in(p), _ = parsed(r, path, n, parse) }
	return special(word, of, in, read, write, standIns...)
}

// onlyIf returns the field as one that is written if the policy has it.
func (f policyField) onlyIf(has func(*policy) bool) policyField {
	write := f.write
	f.write = func(p *policy) *yaml.Node {
		if !has(p) {
			return yamlList()
		}
		return write(p)
	}
	return f
}

func (r *reader) readPolicy(path string, n *yaml.Node) policy {
	p := policy{at: map[string]*yaml.Node{"": placeOf(n)}, unread: map[string]bool{}}
	p.readFields(r, path, n, policyFields)
	if n.Kind == yaml.MappingNode {
		p.judge(r, path)
	}
	p.could = p.couldBe()
	return p
}

func (p *policy) readFields(r *reader, path string, n *yaml.Node, fields []policyField) {
	var all []field
	for _, f := range fields {
		all = append(all, field{f.word, func(path string, n *yaml.Node) {
			before := r.Mistakes()
			f.read(p, r, path, n)
			p.at[f.of], p.unread[f.of] = placeOf(n), p.unread[f.of] || r.Mistakes() > before
		}})
	}
	r.mapping(path, n, all)
}

// placeOf returns where a node is, without what it says.
func placeOf(n *yaml.Node) *yaml.Node { return &yaml.Node{Line: n.Line, Column: n.Column} }

func (p *policy) written(fields []policyField) *yaml.Node {
	n := yamlMap()
	for _, f := range fields {
		if value := f.write(p); value.Kind == yaml.ScalarNode || len(value.Content) > 0 {
			n.Content = append(n.Content, yamlWord(f.word), value)
		}
	}
	return n
}

var failModes = map[string]tiered.FailMode{"local": tiered.FailLocal, "open": tiered.FailOpen, "closed": tiered.FailClosed}

// algorithms are those that a policy can have.
func algorithms() (all []tiered.Algorithm) {
	for _, a := range lua.Choices() {
		all = append(all, tiered.Algorithm(a))
	}
	return all
}

// algorithm reads the name of an algorithm.
func algorithm(text string) (tiered.Algorithm, error) {
	a, err := lua.Parse(text)
	if err != nil {
		return 0, fmt.Errorf("is %s: %w", strictyaml.Quote(text), err)
	}
	return tiered.Algorithm(a), nil
}

// has reports whether the algorithm of a policy has a property.
func (p *policy) has(x lua.Property) bool { return lua.Algorithm(p.Algorithm).Has(x) }

// limits returns the limit, those of plans, and those of keys.
func (p *policy) limits() []tiered.Limit {
	all := []tiered.Limit{p.Limit}
	for _, name := range slices.Sorted(maps.Keys(p.Plans)) {
		all = append(all, p.Plans[name])
	}
	for _, k := range p.keys {
		all = append(all, k.limit)
	}
	return all
}

func (p *policy) readPlans(r *reader, path string, n *yaml.Node) {
	r.Pairs(path, n, func(key, value *yaml.Node) {
		if value.Kind == yaml.SequenceNode {
			r.Bad(value, "%s is a list: must be a text, such as 100/min or, of several limits, 100/min and 1000/h",
				strictyaml.Within(path, key.Value))
		} else if l, ok := parsed(r, strictyaml.Within(path, key.Value), value, tiered.ParseLimit); ok {
			if p.Plans == nil {
				p.Plans = map[string]tiered.Limit{}
			}
			p.Plans[key.Value], p.at[fmt.Sprintf("Plans[%.80q]", key.Value)] = l, placeOf(value)
		}
	})
}

func yamlPlans(plans map[string]tiered.Limit) *yaml.Node {
	n := yamlMap()
	for _, name := range slices.Sorted(maps.Keys(plans)) {
		n.Content = append(n.Content, yamlText(name), yamlString(plans[name]))
	}
	return n
}

func yamlMaxDebt(tokens int64) *yaml.Node {
	n := yamlValue(tokens)
	if tokens == 0 {
		n.LineComment = "one burst"
	}
	return n
}

func (p *policy) yamlLease() *yaml.Node {
	q := *p
	if !p.has(lua.Leased) {
		q.Lease.Size = tiered.NoLease
	} else {
		q.Lease.Period = cmp.Or(p.Lease.Period, defaults.Period)
	}
	n := q.written(leaseFields)
	n.Style = yaml.FlowStyle
	if q.Lease.Size == 0 {
		n.LineComment = "the size follows demand"
	}
	return n
}

func leaseSize(text string) (int64, error) {
	if text == "none" {
		return tiered.NoLease, nil
	}
	return whole(text)
}

// keyLimit is the limit of a key, or of all keys that begin with it.
type keyLimit struct {
	key    string
	prefix bool
	limit  tiered.Limit
	node   *yaml.Node
}

// ofKeys returns the field for limits of single keys, or of prefixes. Keys are those of clients,
// which no line of a log contains.
func ofKeys(word string, prefix bool) policyField {
	read := func(p *policy, r *reader, path string, n *yaml.Node) {
		r.Keys(path, n, func(key, value *yaml.Node) {
			if key.Value == "" || len(key.Value) > defaults.MaxKeyLength {
				r.Bad(key, "%s: a key has %d bytes: must have 1 to %d", path, len(key.Value), defaults.MaxKeyLength)
			} else if l, ok := parsed(r, path, value, tiered.ParseLimit); ok {
				p.keys = append(p.keys, keyLimit{key.Value, prefix, l, value})
			}
		})
		if len(p.keys) > 0 {
			p.PerKey = perKey(p.keys)
		}
	}
	write := func(p *policy) *yaml.Node {
		n := yamlMap()
		for _, k := range p.keys {
			if k.prefix == prefix {
				n.Content = append(n.Content, yamlText(k.key), yamlString(k.limit))
			}
		}
		return n
	}
	return policyField{word, "PerKey", read, write, nil}
}

// perKey returns a [tiered.Policy].PerKey: the limit of the key itself counts, or else that of its
// longest prefix.
func perKey(all []keyLimit) func(string) tiered.Limit {
	keys, prefixes, longest := map[string]tiered.Limit{}, map[string]tiered.Limit{}, 0
	for _, k := range all {
		if k.prefix {
			prefixes[k.key], longest = k.limit, max(longest, len(k.key))
		} else {
			keys[k.key] = k.limit
		}
	}
	return func(key string) tiered.Limit {
		l, ok := keys[key]
		for n := min(longest, len(key)); n > 0 && !ok; n-- {
			l, ok = prefixes[key[:n]]
		}
		return l // or zero: the policy's
	}
}
