package policyfile

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
)

// mostLost bounds what a log line names.
const mostLost = 10

// lost names what a version of a file has and the next one has not: policies, rules, fields, keys.
// Each is named once, by the outermost. Both are valid files.
func lost(before, after []byte) []string {
	a, errA := strictyaml.Document("", before, MaxSize, "")
	b, errB := strictyaml.Document("", after, MaxSize, "")
	if errA != nil || errB != nil {
		return nil
	}
	var l losses
	l.between("", a, b)
	if more := len(l) - mostLost; more > 0 {
		l = append(l[:mostLost], fmt.Sprintf("and %d more", more))
	}
	return l
}

// losses are what one node has and another has not.
type losses []string

func (l *losses) between(path string, a, b *yaml.Node) {
	switch {
	case a.Kind == yaml.ScalarNode:
		return // a value has changed
	case a.Kind != b.Kind:
		*l = append(*l, path)
		return
	}
	left := map[string]*yaml.Node{}
	for _, c := range children(path, b) {
		for _, name := range c.names {
			left[name] = c.node
		}
	}
	keys, gone := isOfKeys(path), 0
	for _, c := range children(path, a) {
		var n *yaml.Node
		for _, name := range c.names {
			n = cmp.Or(n, left[name])
		}
		switch {
		case n != nil:
			l.between(c.path, c.node, n)
		case keys:
			gone++
		default:
			*l = append(*l, c.path)
		}
	}
	if gone > 0 {
		*l = append(*l, fmt.Sprintf("%d of %s", gone, path))
	}
}

// isOfKeys reports whether the names in a mapping are keys of clients, which no log line contains.
func isOfKeys(path string) bool {
	return strings.HasSuffix(path, "].keys") || strings.HasSuffix(path, "].prefixes") || strings.HasSuffix(path, "].ranges")
}

// child is a node in another one. Its path is not its place: elements of a list may change places.
type child struct {
	path  string
	names []string // by which another version has it: a limit may get a policy or places, or lose them
	node  *yaml.Node
}

// called are the fields that tell the elements of a list apart.
var called = []string{"name", "match", "policy", "at_once"}

func children(path string, n *yaml.Node) (all []child) {
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			at := strictyaml.Within(path, n.Content[i].Value)
			all = append(all, child{at, []string{at}, n.Content[i+1]})
		}
		return all
	}
	seen := map[string]int{} // of limits with one policy, which stand in for each other
	for i, e := range n.Content {
		c := child{node: e}
		name := func(field, name string) {
			if seen[field+name]++; seen[field+name] > 1 {
				name = fmt.Sprint(name, " ", seen[field+name])
			}
			at := fmt.Sprintf("%s[%s]", path, name)
			c.path, c.names = cmp.Or(c.path, at), append(c.names, field+" "+at)
		}
		for _, field := range called {
			for j := 0; e.Kind == yaml.MappingNode && j+1 < len(e.Content); j += 2 {
				if e.Content[j].Value == field {
					name(field, strictyaml.Quote(e.Content[j+1].Value))
				}
			}
		}
		if c.names == nil {
			name("", strconv.Itoa(i))
		}
		all = append(all, c)
	}
	return all
}
