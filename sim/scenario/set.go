package scenario

import (
	"slices"
	"strconv"
	"strings"
)

// Set changes one field, given as text would have it: Set("fleet.n", "200"), Set("limit.rate", "2000/s").
// [Scenario.Paths] lists what there is. A value that the field cannot have is an error and changes nothing; whether
// all of s still fits together is for [Scenario.Validate] to say, once all is set.
func (s *Scenario) Set(path, value string) error {
	if rule := s.hasPath(path); rule != "" {
		return &Error{Path: path, Text: says("path", given(path), rule)}
	}
	if rule := s.set(path, value); rule != "" {
		return &Error{Path: path, Text: says(path, show(value), rule)}
	}
	return nil
}

// Paths are those that Set takes, in the order of a text. The first limit, and the first traffic, can also be reached
// without its name or number: limit.rate, traffic.rate.
func (s *Scenario) Paths() []string {
	return names(s.targets(), func(t target) string { return t.path })
}

// target is a field that can be set.
type target struct {
	path  string
	field *field
	item  any
}

func (s *Scenario) targets() []target {
	all := []target{{"run", &lengthField, s}, {"warmup", &find("run").fields[0], s}}
	for i := range statements {
		st, n := &statements[i], 0
		for _, item := range st.items(s) {
			prefix := st.name
			switch n++; st.name {
			case "limit":
				prefix += "." + item.(*Limit).Name
			case "traffic", "at":
				prefix += "." + strconv.Itoa(n)
			case "fleet", "net":
			default:
				continue
			}
			_, takes, _, known := st.takes(item)
			for _, name := range takes {
				if known {
					all = append(all, target{prefix + "." + name, st.field(name), item})
				}
			}
		}
	}
	return all
}

// canonicalPath is path as Paths has it.
func (s *Scenario) canonicalPath(path string) string {
	statement, name, _ := strings.Cut(path, ".")
	switch {
	case strings.Contains(name, "."):
	case statement == "limit" && len(s.Limits) > 0:
		return "limit." + s.Limits[0].Name + "." + name
	case statement == "traffic" && len(s.Traffic) > 0:
		return "traffic.1." + name
	}
	return path
}

// hasPath returns a rule with the existing paths if Set does not take path.
func (s *Scenario) hasPath(path string) (rule string) {
	all := s.Paths()
	if slices.Contains(all, s.canonicalPath(path)) {
		return ""
	}
	// Those beside it, or of each statement the first.
	full := s.canonicalPath(path)
	var beside, first []string
	for _, p := range all {
		if i, j := strings.LastIndexByte(p, '.'), strings.LastIndexByte(full, '.'); i >= 0 && j >= 0 &&
			p[:i] == full[:j] {
			beside = append(beside, p)
		}
		statement, name, _ := strings.Cut(p, ".")
		short := statement
		if name != "" {
			short += "." + name[strings.LastIndexByte(name, '.')+1:]
		}
		switch {
		case s.canonicalPath(short) == p:
			first = append(first, short)
		case statement == "at":
			first = append(first, p)
		}
	}
	if len(beside) > 0 {
		first = beside
	}
	return "must be one of " + strings.Join(first, ", ") + meant(path, append(all, first...))
}

// set sets what hasPath says there is.
func (s *Scenario) set(path, value string) (rule string) {
	path = s.canonicalPath(path)
	all := s.targets()
	t := all[slices.IndexFunc(all, func(t target) bool { return t.path == path })]
	return t.field.read(t.item, value)
}

// Clone returns a copy that shares nothing with s. Empty lists are nil.
func (s *Scenario) Clone() *Scenario {
	c := *s
	c.Limits = append([]Limit(nil), s.Limits...)
	c.Traffic = append([]Traffic(nil), s.Traffic...)
	c.Faults = append([]Fault(nil), s.Faults...)
	c.Expect = append([]Expectation(nil), s.Expect...)
	c.Sometimes = append([]string(nil), s.Sometimes...)
	c.Sweep = append([]Axis(nil), s.Sweep...)
	for i := range c.Sweep {
		c.Sweep[i].Values = append([]string(nil), c.Sweep[i].Values...)
	}
	return &c
}
