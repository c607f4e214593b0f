package policyfile

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/misspelled"
	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// reader reads the nodes of a file of policies.
type reader struct {
	strictyaml.Reader
	file *File // as far as it is read
}

// policy returns the number of a policy in the file, or -1.
func (r *reader) policy(name string) int {
	return slices.IndexFunc(r.file.Policies, func(p tiered.Policy) bool { return p.Name == name })
}

// atOnce returns the number of a policy of what runs at the same time, or -1.
func (r *reader) atOnce(name string) int {
	return slices.IndexFunc(r.file.AtOnce, func(p atonce.Policy) bool { return p.Name == name })
}

// field reads the value of one field.
type field struct {
	name string
	read func(path string, n *yaml.Node)
}

// need is a field that must be there, and what it must be.
type need struct{ name, rule string }

// mapping reads the fields of a mapping, in their order here. No other may be there.
func (r *reader) mapping(path string, n *yaml.Node, fields []field, needs ...need) {
	values := map[string][]*yaml.Node{} // one of each, or there is a mistake
	var names []string
	for _, f := range fields {
		names = append(names, f.name)
	}
	meant := map[string][]*yaml.Node{} // fields whose name is a slip
	r.Pairs(path, n, func(key, value *yaml.Node) {
		if slices.Contains(names, key.Value) {
			values[key.Value] = append(values[key.Value], value)
		} else if name := misspelled.Meant(key.Value, names); name != "" {
			r.Bad(key, "%s is no field: must be %s", strictyaml.Within(path, key.Value), name)
			meant[name] = append(meant[name], value)
		} else { // its name is not shown: it may be a key of a client, with a wrong indentation
			r.Bad(key, "%sthis field must be one of %s", strings.TrimPrefix(path+": ", ": "), strings.Join(names, ", "))
		}
	})
	for name, all := range meant { // so that it is not missing too
		if values[name] == nil {
			values[name] = all
		}
	}
	for _, f := range fields {
		for _, value := range values[f.name] {
			f.read(strictyaml.Within(path, f.name), value)
		}
	}
	for _, need := range needs {
		if n.Kind == yaml.MappingNode && values[need.name] == nil {
			r.Bad(n, "%s is missing: %s", strictyaml.Within(path, need.name), need.rule)
		}
	}
}

// list calls f for each element of a list.
func (r *reader) list(path string, n *yaml.Node, f func(path string, n *yaml.Node)) {
	r.List(path, n, func(i int, n *yaml.Node) { f(fmt.Sprintf("%s[%d]", path, i), n) })
}

// parsed reads a text by a function.
func parsed[T any](r *reader, path string, n *yaml.Node, parse func(string) (T, error)) (value T, ok bool) {
	text, ok := r.Text(path, n)
	if !ok {
		return value, false
	}
	value, err := parse(text)
	for _, e := range split(err) {
		r.Bad(n, "%s: %s", path, plain(e))
	}
	return value, err == nil
}

// split returns the errors that were joined.
func split(err error) (flat []error) {
	switch all, ok := err.(interface{ Unwrap() []error }); {
	case ok:
		for _, e := range all.Unwrap() {
			flat = append(flat, split(e)...)
		}
	case err != nil:
		flat = []error{err}
	}
	return flat
}

// plain is the text of an error without the name of the package.
func plain(err error) string { return strings.ReplaceAll(err.Error(), "tiered: ", "") }

// text reads any text.
func text(s string) (string, error) { return s, nil }

// whole reads a whole number.
func whole(text string) (int64, error) {
	n, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("is %s: must be a whole number up to %d", strictyaml.Quote(text), int64(math.MaxInt64))
	}
	return n, nil
}

// boolean reads true or false.
func boolean(text string) (bool, error) {
	switch text {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("is %s: must be true or false", strictyaml.Quote(text))
}

// duration reads a time.
func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("is %s: must be a time such as 250ms or 1m30s", strictyaml.Quote(text))
	}
	return d, nil
}

// word reads one of some words.
func word[T any](words map[string]T) func(string) (T, error) {
	return func(text string) (T, error) {
		value, ok := words[text]
		if !ok {
			return value, fmt.Errorf("is %s: must be one of %s", strictyaml.Quote(text),
				strings.Join(slices.Sorted(maps.Keys(words)), ", "))
		}
		return value, nil
	}
}
