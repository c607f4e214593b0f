package rls

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
)

// What the aliases of a file can grow to is bounded.
const (
	maxNodes = 1_000_000 // values
	maxDepth = 32        // descriptors within descriptors, and merge keys; an alias may be within itself
)

// document returns the root of the only document, or nil. Empty ones may come after it, as after a
// last "---".
func (p *parser) document(text []byte) *yaml.Node {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var first *yaml.Node
	for {
		var doc yaml.Node
		switch err := d.Decode(&doc); {
		case errors.Is(err, io.EOF) && first == nil:
			p.problems = append(p.problems, fmt.Errorf("%s: the file is empty: must have a domain", p.file))
			return nil
		case errors.Is(err, io.EOF):
			return first
		case err != nil && first == nil:
			p.problems = append(p.problems, strictyaml.Syntax(p.file, text, err))
			return nil
		case err != nil:
			p.problems = append(p.problems, fmt.Errorf("%s: the second document of the file is no YAML: must be a file of its own", p.file))
			return nil
		case first == nil:
			first = doc.Content[0]
		case doc.Content[0].Tag != "!!null":
			p.bad(doc.Content[0], "this is a second document: must be a file of its own")
			return first
		}
	}
}

// fields returns the fields of a mapping, by name. It is nil if n is something else.
func (p *parser) fields(n *yaml.Node, known ...string) map[string]*yaml.Node {
	if n = p.follow(n); n == nil {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		p.bad(n, "%s: must be fields with values", shown(n))
		return nil
	}
	all := map[string]*yaml.Node{}
	merged := map[string]*yaml.Node{}
	for i := 0; i < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		switch {
		case name.Tag == "!!merge":
			p.merge(merged, value, known)
		case !slices.Contains(known, name.Value):
			p.bad(name, "%.64q is not a field here: must be one of %s", name.Value, strings.Join(known, ", "))
		case all[name.Value] != nil:
			p.bad(name, "%s is there twice", name.Value)
		default:
			all[name.Value] = value
		}
	}
	maps.Copy(merged, all)
	return merged
}

// merge adds the fields of the mapping in a merge key, or of a list of them. The first one counts.
func (p *parser) merge(all map[string]*yaml.Node, n *yaml.Node, known []string) {
	p.depth++
	defer func() { p.depth-- }()
	if p.depth > maxDepth {
		p.bad(n, "this is within %d others: must be within at most %d", p.depth-1, maxDepth-1)
		return
	}
	from := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		from = n.Content
	}
	for _, n := range from {
		for name, value := range p.fields(n, known...) {
			if all[name] == nil {
				all[name] = value
			}
		}
	}
}

// follow returns what an alias stands for. It is nil if there is too much of it.
func (p *parser) follow(n *yaml.Node) *yaml.Node {
	if p.nodes++; p.nodes > maxNodes {
		if p.nodes == maxNodes+1 {
			p.bad(n, "the file has more than %d values with its aliases: must have fewer", maxNodes)
		}
		return nil
	}
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// shown tells what a value is, without more of it than a line.
func shown(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "fields"
	}
	return fmt.Sprintf("%.64q", n.Value)
}

// scalar returns the text of a value that is no list and no mapping. It is "" if there is none.
func (p *parser) scalar(n *yaml.Node) (*yaml.Node, string) {
	if n == nil {
		return nil, ""
	}
	if n = p.follow(n); n == nil {
		return nil, ""
	}
	if n.Kind != yaml.ScalarNode {
		p.bad(n, "%s: must be a single value", shown(n))
		return nil, ""
	}
	if n.Tag == "!!null" {
		return nil, ""
	}
	return n, n.Value
}

func (p *parser) text(n *yaml.Node) string {
	_, s := p.scalar(n)
	return s
}

func (p *parser) truth(n *yaml.Node) (is bool) {
	if n, _ := p.scalar(n); n != nil {
		if err := n.Decode(&is); err != nil {
			p.bad(n, "%s: must be true or false", shown(n))
		}
	}
	return is
}

func (p *parser) number(n *yaml.Node, bits int) uint64 {
	n, _ = p.scalar(n)
	if n == nil {
		return 0
	}
	var x uint64 // as YAML writes it: also 1_000 and 0x10
	if n.ShortTag() != "!!int" || n.Decode(&x) != nil || x >= 1<<bits {
		p.bad(n, "%s: must be a whole number, 0 to %d", shown(n), uint64(1)<<bits-1)
		return 0
	}
	return x
}

// list calls f for the elements of a list.
func (p *parser) list(n *yaml.Node, f func(*yaml.Node)) {
	if n == nil {
		return
	}
	if n = p.follow(n); n == nil || n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.SequenceNode {
		p.bad(n, "%s: must be a list", shown(n))
		return
	}
	for _, e := range n.Content {
		f(e)
	}
}

// metadata reads values that JSON has, under names.
func (p *parser) metadata(n *yaml.Node) *structpb.Struct {
	if n == nil || n.Tag == "!!null" {
		return nil
	}
	at := n
	if n.Kind == yaml.AliasNode {
		at = n.Alias
	}
	if at.Kind != yaml.MappingNode {
		p.bad(n, "%s: must be fields with values", shown(at))
		return nil
	}
	return p.value(n).GetStructValue()
}

// value reads a value that JSON has.
func (p *parser) value(n *yaml.Node) *structpb.Value {
	p.depth++
	defer func() { p.depth-- }()
	at := n
	if n = p.follow(n); n == nil {
		return nil
	}
	if p.depth > maxDepth {
		p.bad(at, "this is within %d others: must be within at most %d", p.depth-1, maxDepth-1)
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		all := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for i := 0; i < len(n.Content); i += 2 {
			name := n.Content[i]
			if name.Kind != yaml.ScalarNode || name.Tag == "!!merge" {
				p.bad(name, "%s: must be a name", shown(name))
				continue
			}
			all.Fields[name.Value] = p.value(n.Content[i+1])
		}
		return structpb.NewStructValue(all)
	case yaml.SequenceNode:
		var all []*structpb.Value
		for _, e := range n.Content {
			all = append(all, p.value(e))
		}
		return listOf(all)
	}
	var number float64
	switch n.ShortTag() {
	case "!!null":
		return structpb.NewNullValue()
	case "!!bool":
		return structpb.NewBoolValue(p.truth(n))
	case "!!int", "!!float":
		if err := n.Decode(&number); err == nil && !math.IsNaN(number) && !math.IsInf(number, 0) {
			return structpb.NewNumberValue(number)
		}
		p.bad(n, "%s: must be a number that JSON has", shown(n))
		return nil
	}
	if !utf8.ValidString(n.Value) {
		p.bad(n, "%s: must be UTF-8", shown(n))
		return nil
	}
	return structpb.NewStringValue(n.Value)
}
