package scenario

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/misspelled"
	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
)

// MaxBytes is the length of the longest text that is read.
const MaxBytes = 1 << 20

// before finds a scenario in the language that came before YAML, because no line of YAML begins
// like that.
var before = regexp.MustCompile(`(?m)^(name[ \t]+"|limit[ \t]+\S+[ \t]+rate=)`)

// Parse reads a scenario from YAML, and so from JSON. It reports all that is wrong with it at once,
// a line each, with line and column; a *Scenario comes only without. It never panics. The rules are
// those of [Scenario.Validate], but the faults may be in any order; they come sorted by their
// times.
func Parse(text string) (*Scenario, error) { return ParseFile("", text) }

// ParseFile is [Parse] of a file, whose name each error begins with.
func ParseFile(name, text string) (*Scenario, error) {
	return parse(name, text, (*reader).rules)
}

// parse reads a scenario, and has what its fields have to do with each other checked.
func parse(name, text string, check func(*reader, *Scenario)) (*Scenario, error) {
	r := newReader(name)
	if before.MatchString(text) {
		r.Bad(&yaml.Node{Line: 1, Column: 1},
			"the scenario is in the language of before: must be YAML, as sim/scenarios.md shows")
		return nil, r.Err()
	}
	root, err := strictyaml.Document(cmp.Or(name, "the scenario"), []byte(text), MaxBytes,
		"name, limits, fleet, traffic and run")
	if err != nil {
		return nil, err
	}
	s := r.scenario(root)
	check(r, s)
	slices.SortStableFunc(s.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	r.Sort()
	if err := r.Err(); err != nil {
		return nil, err
	}
	return s, nil
}

// Validate reports all that is wrong with s, a line each, each with its field's path, or nil. The
// rules are those of [Parse]; besides, faults have to be in the order of their times.
func (s *Scenario) Validate() error {
	r := newReader("")
	again := r.scenario(s.node())
	r.rules(again)
	for i := 1; i < len(again.Faults); i++ {
		if last := again.Faults[i-1].At; again.Faults[i].At < last {
			r.wrong(element("faults", i)+".at", again.Faults[i].At.String(),
				"must not be before the fault that is listed before it, at "+last.String())
		}
	}
	return r.Err()
}

// reader reads a scenario, and remembers where each field was.
type reader struct {
	strictyaml.Reader
	at map[string]*yaml.Node // by path
	// Paths of known errors. One error is enough; what follows from it is none.
	bad map[string]bool
}

func newReader(name string) *reader {
	return &reader{strictyaml.Reader{Name: name}, map[string]*yaml.Node{}, map[string]bool{}}
}

// wrong reports an error at the place of a path or, if it is missing, of what it should be in.
func (r *reader) wrong(path, value, rule string) {
	if !r.sound(path) {
		return
	}
	r.bad[path] = true
	n, found := r.at[path]
	for up := path; !found; n, found = r.at[up] {
		up = above(up)
	}
	r.Bad(n, "%s is %s: %s", path, value, rule)
}

// must is wrong unless ok.
func (r *reader) must(ok bool, path, value, rule string) {
	if !ok {
		r.wrong(path, value, rule)
	}
}

// sound reports whether no error is known of any of these paths, nor of what they are in.
func (r *reader) sound(paths ...string) bool {
	for _, path := range paths {
		for ; path != ""; path = above(path) {
			if r.bad[path] {
				return false
			}
		}
	}
	return !r.bad[""]
}

// above is the path that a path is in.
func above(path string) string { return path[:max(0, strings.LastIndexByte(path, '.'))] }

// element is the path of an element of a list, which people count from 1.
func element(path string, i int) string { return fmt.Sprintf("%s.%d", path, i+1) }

func (r *reader) scenario(root *yaml.Node) *Scenario {
	s := &Scenario{}
	r.at[""] = root
	if r.bad[""] = root.Kind != yaml.MappingNode; r.bad[""] {
		r.Bad(root, "the scenario is %s: must be a mapping", strictyaml.Shape(root))
		return s
	}
	r.fields("", "a scenario", root, tags(s), func(path string, n *yaml.Node) {
		switch path {
		case "expect":
			r.list(path, n, maxExpect, func(path string, n *yaml.Node) { s.Expect = append(s.Expect, r.expectation(path, n)) })
		case "sometimes":
			r.list(path, n, len(Happenings), func(path string, n *yaml.Node) {
				s.Sometimes = append(s.Sometimes, r.text(path, n))
			})
		case "sweep":
			s.Sweep = r.axes(path, n)
		default:
			if f := find("").field(path); f != nil {
				r.value(path, f, s, n)
				return
			}
			m := find(path)
			read := func(path string, n *yaml.Node) { r.item(m, path, n, m.add(s)) }
			if m.most > 0 {
				r.list(path, n, m.most, read)
			} else {
				read(path, n)
			}
		}
	})
	r.needs("", find(""), find("").needs)
	if r.at["fleet"] == nil {
		r.needs("fleet", find("fleet"), find("fleet").needs)
	}
	return s
}

// fields reads the fields of a mapping.
func (r *reader) fields(path, what string, n *yaml.Node, takes []string, read func(path string, n *yaml.Node)) {
	r.bad[path] = n.Kind != yaml.MappingNode
	var slips []string
	r.Pairs(path, n, func(key, value *yaml.Node) {
		if !slices.Contains(takes, key.Value) {
			r.Bad(key, "%s: %s takes only %s%s", strictyaml.Within(path, key.Value), what, strings.Join(takes, ", "),
				meant(key.Value, takes))
			slips = append(slips, join(path, misspelled.Meant(key.Value, takes)))
			return
		}
		at := join(path, key.Value)
		r.at[at] = value
		read(at, value)
	})
	for _, at := range slips { // it is not missing too
		r.bad[at] = r.bad[at] || r.at[at] == nil
	}
}

// list reads the elements of a list.
func (r *reader) list(path string, n *yaml.Node, most int, read func(path string, n *yaml.Node)) {
	if n.Kind == yaml.SequenceNode && len(n.Content) > most {
		r.wrong(path, fmt.Sprintf("a list of %d", len(n.Content)), fmt.Sprintf("must have %d elements at most", most))
		return
	}
	r.bad[path] = n.Kind != yaml.SequenceNode
	r.List(path, n, func(i int, n *yaml.Node) {
		at := element(path, i)
		r.at[at] = n
		read(at, n)
	})
}

func (r *reader) text(path string, n *yaml.Node) string {
	text, ok := r.Text(path, n)
	r.bad[path] = !ok
	return text
}

// value reads a field.
func (r *reader) value(path string, f *field, item any, n *yaml.Node) {
	text := r.text(path, n)
	if rule := f.read(item, text); rule != "" {
		r.wrong(path, strictyaml.Quote(text), rule)
	}
}

// item reads a mapping.
func (r *reader) item(m *mapping, path string, n *yaml.Node, item any) {
	kind := ""
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == m.by {
			kind = n.Content[i+1].Value
		}
	}
	what, takes, needs := m.takes(kind)
	r.fields(path, what, n, takes, func(at string, n *yaml.Node) {
		r.value(at, m.field(strings.TrimPrefix(at, path+".")), item, n)
	})
	r.needs(path, m, needs)
}

// needs reports the fields that are missing.
func (r *reader) needs(path string, m *mapping, needs []string) {
	for _, name := range needs {
		at := join(path, name)
		r.must(r.at[at] != nil, at, missing, "must be "+m.field(name).span)
	}
}

// expectation reads METRIC <= VALUE, and perhaps after=TIME, before=TIME and limit=NAME.
func (r *reader) expectation(path string, n *yaml.Node) (e Expectation) {
	text := r.text(path, n)
	words := strings.Fields(text)
	if len(words) < 3 {
		r.wrong(path, strictyaml.Quote(text), "must be METRIC <= VALUE, as in shortfall <= 5% after=20s")
		return e
	}
	e.Metric, e.Op = words[0], words[1]
	m, known := metric(e.Metric)
	r.must(known, path+".metric", strictyaml.Quote(e.Metric), oneOf(e.Metric, metricNames()))
	r.must(e.Op == "<=" || e.Op == ">=", path+".op", strictyaml.Quote(e.Op), "must be <= or >=")
	if known {
		v, rule := units[m.Unit].read(words[2])
		r.must(rule == "", path+".value", strictyaml.Quote(words[2]), rule)
		e.Value, _ = v.(float64)
	}
	for _, word := range words[3:] {
		name, value, _ := strings.Cut(word, "=")
		f, at := expectations.field(name), join(path, name)
		if f == nil || r.at[at] != nil {
			r.wrong(path, strictyaml.Quote(word), "must be one of after=TIME, before=TIME, limit=NAME, each once")
			return e
		}
		r.at[at] = n
		rule := f.read(&e, value)
		r.must(rule == "", at, strictyaml.Quote(value), rule)
	}
	return e
}

// axes reads the axes of a sweep: the paths of fields, each with its values.
func (r *reader) axes(path string, n *yaml.Node) (all []Axis) {
	r.bad[path] = n.Kind != yaml.MappingNode
	if len(n.Content) > 2*maxAxes {
		r.wrong(path, fmt.Sprintf("of %d axes", len(n.Content)/2), fmt.Sprintf("must have %d at most", maxAxes))
		return nil
	}
	r.Pairs(path, n, func(key, value *yaml.Node) {
		a := Axis{Path: key.Value}
		at := element(path, len(all))
		r.at[at] = key
		r.list(at, value, maxValues, func(path string, n *yaml.Node) { a.Values = append(a.Values, r.text(path, n)) })
		all = append(all, a)
	})
	return all
}
