package policyfile

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// mostErrors bounds the errors that are told of one file.
const mostErrors = 50

// reader reads the nodes of a file, and collects what is wrong with them.
type reader struct {
	name string // of the file
	errs []error
	more int // errors beyond mostErrors
}

// bad reports what is wrong at a node.
func (r *reader) bad(n *yaml.Node, format string, args ...any) {
	if len(r.errs) == mostErrors {
		r.more++
		return
	}
	r.errs = append(r.errs, fmt.Errorf("%s:%d:%d: %s", r.name, n.Line, n.Column, fmt.Sprintf(format, args...)))
}

// err returns all that is wrong.
func (r *reader) err() error {
	if r.more > 0 {
		return errors.Join(append(r.errs, fmt.Errorf("%s: and %d more mistakes", r.name, r.more))...)
	}
	return errors.Join(r.errs...)
}

// quote returns a value for an error, shortened.
func quote(s string) string {
	if len(s) > 60 {
		s = s[:60] + "…"
	}
	return strconv.Quote(s)
}

// shape names what a node is, for errors.
func shape(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias, and aliases are not read"
	}
	return quote(n.Value)
}

// field reads the value of one field.
type field struct {
	name string
	read func(path string, n *yaml.Node)
}

// mapping reads the fields of a mapping. Each may be there once, and no other.
func (r *reader) mapping(path string, n *yaml.Node, fields []field) {
	r.pairs(path, n, func(key, value *yaml.Node) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == key.Value })
		if i < 0 {
			var names []string
			for _, f := range fields {
				names = append(names, f.name)
			}
			r.bad(key, "%s: must be one of %s", within(path, key.Value), strings.Join(names, ", "))
			return
		}
		fields[i].read(within(path, key.Value), value)
	})
}

// within returns the path of a field.
func within(path, name string) string {
	if len(name) > 60 {
		name = name[:60] + "…"
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// pairs calls f for each key of a mapping and its value.
func (r *reader) pairs(path string, n *yaml.Node, f func(key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.bad(n, "%s is %s: must be a mapping", path, shape(n))
		return
	}
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			r.bad(key, "%s: a name is %s: must be a text", path, shape(key))
			continue
		}
		if line := seen[key.Value]; line > 0 {
			r.bad(key, "%s is there twice: the first is in line %d", within(path, key.Value), line)
			continue
		}
		seen[key.Value] = key.Line
		f(key, value)
	}
}

// list calls f for each element of a list.
func (r *reader) list(path string, n *yaml.Node, f func(path string, n *yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		r.bad(n, "%s is %s: must be a list", path, shape(n))
		return
	}
	for i, element := range n.Content {
		f(fmt.Sprintf("%s[%d]", path, i), element)
	}
}

// text returns a scalar as it was written. It reports false, and says so, if there is none.
func (r *reader) text(path string, n *yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		r.bad(n, "%s is %s: must be a text", path, shape(n))
		return "", false
	}
	return n.Value, true
}

// parsed reads a text by a function.
func parsed[T any](r *reader, path string, n *yaml.Node, parse func(string) (T, error)) (value T, ok bool) {
	text, ok := r.text(path, n)
	if !ok {
		return value, false
	}
	value, err := parse(text)
	if err != nil {
		for _, e := range split(err) {
			r.bad(n, "%s: %s", path, plain(e))
		}
		return value, false
	}
	return value, true
}

// split returns the errors that were joined.
func split(err error) []error {
	if err == nil {
		return nil
	}
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		var flat []error
		for _, e := range all.Unwrap() {
			flat = append(flat, split(e)...)
		}
		return flat
	}
	return []error{err}
}

// plain is the text of an error without the name of the package.
func plain(err error) string { return strings.ReplaceAll(err.Error(), "tiered: ", "") }

// whole reads a whole number.
func whole(text string) (int64, error) {
	n, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("is %s: must be a whole number up to %d", quote(text), int64(math.MaxInt64))
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
	return false, fmt.Errorf("is %s: must be true or false", quote(text))
}

// duration reads a time.
func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("is %s: must be a time such as 250ms or 1m30s", quote(text))
	}
	return d, nil
}

// word reads one of some words.
func word[T any](words map[string]T) func(string) (T, error) {
	return func(text string) (T, error) {
		value, ok := words[text]
		if !ok {
			var names []string
			for name := range words {
				names = append(names, name)
			}
			slices.Sort(names)
			return value, fmt.Errorf("is %s: must be one of %s", quote(text), strings.Join(names, ", "))
		}
		return value, nil
	}
}
