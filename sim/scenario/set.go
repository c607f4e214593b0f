package scenario

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
)

// Set changes one field, given as a text would have it: Set("fleet.n", "200"),
// Set("limits.api.rate", "2000/s"). The first element of a list can be reached without its name or
// number too: limits.rate, traffic.rate, faults.for. A value that the field cannot have is an
// error, and changes nothing. Call [Scenario.Validate] after the last Set, because only then all of
// s has to fit together.
func (s *Scenario) Set(path, value string) error {
	t, rule := s.find(path)
	if rule != "" {
		return fmt.Errorf("path is %s: %s", strictyaml.Quote(path), rule)
	}
	if rule := t.field.read(t.item, value); rule != "" {
		return fmt.Errorf("%s is %s: %s", path, strictyaml.Quote(value), rule)
	}
	return nil
}

// target is a field that can be set.
type target struct {
	path  string
	short string // of the first element of a list
	field *field
	item  any
}

func (s *Scenario) targets() (all []target) {
	for i := range mappings {
		m := &mappings[i]
		for n, item := range m.items(s) {
			prefix := m.path
			if l, ok := item.(*Limit); ok {
				prefix += "." + l.Name
			} else if m.most > 0 {
				prefix = element(prefix, n)
			}
			_, takes, _ := m.takes(m.kindOf(item))
			for _, name := range takes {
				t := target{join(prefix, name), "", m.field(name), item}
				if n == 0 {
					t.short = join(m.path, name)
				}
				all = append(all, t)
			}
		}
	}
	return all
}

// find is the target of a path. If there is none, rule names the paths beside it, or else all.
func (s *Scenario) find(path string) (t target, rule string) {
	targets := s.targets()
	is := func(t target) bool { return t.path == path }
	first := func(t target) bool { return t.short == path && path != "" }
	for _, f := range []func(target) bool{is, first} {
		if i := slices.IndexFunc(targets, f); i >= 0 {
			return targets[i], ""
		}
	}
	var all, short, beside []string
	for _, t := range targets {
		all = append(all, t.path)
		if t.short != "" {
			short = append(short, t.short)
		}
		if up := above(path); up != "" && up == above(t.path) {
			beside = append(beside, t.path)
		}
	}
	if beside == nil {
		beside = short
	}
	return t, "must be one of " + strings.Join(beside, ", ") + meant(path, slices.Concat(all, short))
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
