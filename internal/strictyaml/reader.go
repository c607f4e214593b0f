// Package strictyaml reads files of YAML, and so of JSON. It reports all their mistakes at once,
// each with its line and column. A field may be there once, and aliases are not read.
package strictyaml

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// mostErrors bounds the errors that are told of one file.
const mostErrors = 50

// longest is how many bytes of a value or of a name an error shows.
const longest = 60

// Document returns the root of the only document of a file of at most so many bytes. must says what
// a file has, for the error about an empty one.
func Document(name string, data []byte, most int, must string) (*yaml.Node, error) {
	if len(data) > most {
		return nil, fmt.Errorf("%s has more than %d bytes", name, most)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s is empty: must have %s", name, must)
		}
		return nil, Syntax(name, data, err)
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s has a second document: must be one", name)
	}
	return document.Content[0], nil
}

// Reader reads the nodes of a file, and collects what is wrong with them.
type Reader struct {
	Name string // of the file; empty if it has none

	mistakes []mistake
	more     int // mistakes beyond mostErrors
}

type mistake struct {
	line, column int
	text         string
}

// Bad reports what is wrong at a node. A node that was not read from a file has no place.
func (r *Reader) Bad(n *yaml.Node, format string, args ...any) {
	if len(r.mistakes) == mostErrors {
		r.more++
		return
	}
	place := r.Name
	if n.Line > 0 {
		place = strings.TrimPrefix(fmt.Sprintf("%s:%d:%d", r.Name, n.Line, n.Column), ":")
	}
	r.mistakes = append(r.mistakes, mistake{n.Line, n.Column, at(place, fmt.Sprintf(format, args...))})
}

// at is what is wrong at a place.
func at(place, text string) string {
	if place == "" {
		return text
	}
	return place + ": " + text
}

// Mistakes is how many there are so far.
func (r *Reader) Mistakes() int { return len(r.mistakes) + r.more }

// Sort puts the mistakes in the order of the file.
func (r *Reader) Sort() {
	slices.SortStableFunc(r.mistakes, func(a, b mistake) int {
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column))
	})
}

// Err returns all that is wrong, or nil.
func (r *Reader) Err() error {
	var all []error
	for _, m := range r.mistakes {
		all = append(all, errors.New(m.text))
	}
	if r.more > 0 {
		all = append(all, errors.New(at(r.Name, fmt.Sprintf("and %d more mistakes", r.more))))
	}
	return errors.Join(all...)
}

// Quote returns a value for an error, shortened.
func Quote(s string) string { return strconv.Quote(short(s)) }

func short(s string) string {
	if len(s) > longest {
		return s[:longest] + "…"
	}
	return s
}

// Shape names what a node is, for errors.
func Shape(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias, and aliases are not read"
	}
	return Quote(n.Value)
}

// Within returns the path of a field.
func Within(path, name string) string {
	if path == "" {
		return short(name)
	}
	return path + "." + short(name)
}

// Pairs calls f for each field of a mapping and its value. It does so too for a field that is there
// twice, which is a mistake: what is wrong with its values is told at once.
func (r *Reader) Pairs(path string, n *yaml.Node, f func(key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.Bad(n, "%s is %s: must be a mapping", path, Shape(n))
		return
	}
	r.pairs(path, n, func(name string) string { return Within(path, name) }, f)
}

// Keys is Pairs of a mapping whose names may be secrets, such as keys of clients. What it reports
// shows none.
func (r *Reader) Keys(path string, n *yaml.Node, f func(key, value *yaml.Node)) {
	switch n.Kind {
	case yaml.MappingNode:
		r.pairs(path, n, func(string) string { return path + ": a key" }, f)
	case yaml.ScalarNode:
		r.Bad(n, "%s is a text: must be a mapping", path)
	default:
		r.Bad(n, "%s is %s: must be a mapping", path, Shape(n))
	}
}

func (r *Reader) pairs(path string, n *yaml.Node, called func(string) string, f func(key, value *yaml.Node)) {
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			r.Bad(key, "%s: a name is %s: must be a text", path, Shape(key))
			continue
		}
		if line, again := seen[key.Value]; again {
			r.Bad(key, "%s is there twice: the first is in line %d", called(key.Value), line)
		} else {
			seen[key.Value] = key.Line
		}
		f(key, value)
	}
}

// List calls f for each element of a list.
func (r *Reader) List(path string, n *yaml.Node, f func(i int, n *yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		r.Bad(n, "%s is %s: must be a list", path, Shape(n))
		return
	}
	for i, element := range n.Content {
		f(i, element)
	}
}

// Text returns a scalar as it was written. It reports false, and says so, if there is none.
func (r *Reader) Text(path string, n *yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		r.Bad(n, "%s is %s: must be a text", path, Shape(n))
		return "", false
	}
	return n.Value, true
}
