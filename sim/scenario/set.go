package scenario

import (
	"slices"
	"strconv"
	"strings"
)

// Set changes one field, given as text would have it: Set("fleet.n", "200"), Set("limit.rate", "2000/s"). [Scenario.Paths]
// lists what there is. A value that the field cannot have is an error and changes nothing; whether all of s still fits
// together is for [Scenario.Validate] to say, once all is set.
func (s *Scenario) Set(path, value string) error {
	if rule := s.hasPath(path); rule != "" {
		return &Error{Offset: -1, Path: path, Text: says("path", given(path), rule)}
	}
	if rule := s.set(path, value); rule != "" {
		return &Error{Offset: -1, Path: path, Text: says(path, show(value), rule)}
	}
	return nil
}

// Paths are those that Set takes, in the order of a text. The first limit, and the first traffic, can also be reached
// without its name or number: limit.rate, traffic.rate.
func (s *Scenario) Paths() []string {
	paths := []string{"run", "warmup"}
	add := func(prefix string, names []string) {
		for _, n := range names {
			paths = append(paths, prefix+"."+n)
		}
	}
	for _, l := range s.Limits {
		add("limit."+l.Name, names(limitFields))
	}
	add("fleet", names(fleetFields))
	for i, t := range s.Traffic {
		takes, _, _ := shapeTakes(t.Shape)
		add("traffic."+strconv.Itoa(i+1), takes)
	}
	add("net", names(netFields))
	for i, f := range s.Faults {
		takes, _, _ := kindTakes(f.Kind)
		add("at."+strconv.Itoa(i+1), takes)
	}
	return paths
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

// hasPath says what there is if path is nothing that Set takes, and nothing if it is.
func (s *Scenario) hasPath(path string) (rule string) {
	all := s.Paths()
	if slices.Contains(all, s.canonicalPath(path)) {
		return ""
	}
	// Those beside it, or of each statement the first.
	full := s.canonicalPath(path)
	var beside, first []string
	for _, p := range all {
		if i, j := strings.LastIndexByte(p, '.'), strings.LastIndexByte(full, '.'); i >= 0 && j >= 0 && p[:i] == full[:j] {
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
	statement, rest, _ := strings.Cut(path, ".")
	dot := strings.LastIndex(rest, ".") // a limit's name may have some
	which, name := "", rest
	if dot >= 0 {
		which, name = rest[:dot], rest[dot+1:]
	}
	nth, _ := strconv.Atoi(which)
	switch statement {
	case "run":
		return lengthField.span.set(&s.Length, value)
	case "warmup":
		return setField(s, runFields, "warmup", value)
	case "fleet":
		return setField(&s.Fleet, fleetFields, name, value)
	case "net":
		return setField(&s.Net, netFields, name, value)
	case "traffic":
		return setField(&s.Traffic[nth-1], trafficFields, name, value)
	case "at":
		return setField(&s.Faults[nth-1], faultFields, name, value)
	default: // limit
		i := slices.IndexFunc(s.Limits, func(l Limit) bool { return l.Name == which })
		return setField(&s.Limits[i], limitFields, name, value)
	}
}

func setField[T any](t *T, fields []field[T], name, value string) (rule string) {
	f := find(fields, name)
	return f.span.set(f.at(t), value)
}

// Clone is a copy that shares nothing with s.
func (s *Scenario) Clone() *Scenario {
	c := *s
	c.Limits = slices.Clone(s.Limits)
	c.Traffic = slices.Clone(s.Traffic)
	c.Faults = slices.Clone(s.Faults)
	c.Expect = slices.Clone(s.Expect)
	c.Sometimes = slices.Clone(s.Sometimes)
	c.Sweep = slices.Clone(s.Sweep)
	for i := range c.Sweep {
		c.Sweep[i].Values = slices.Clone(c.Sweep[i].Values)
	}
	return &c
}
