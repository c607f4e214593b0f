package policyfile

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
)

// table finds the patterns that match a request. It chooses as [http.ServeMux] does, and never
// redirects.
type table struct {
	patterns []pattern
	exact    tree
	folded   tree // of the patterns in lower case: those that differ in case only are in one place
	capitals bool // a pattern has upper case in its path, so that folded differs from exact
	hosts    bool // a pattern has a host
}

// places are patterns that match the same requests, by their numbers.
type places []int

// tree has the patterns by host and method, "" for any.
type tree map[string]map[string]*node

// node is a place in the paths of patterns.
type node struct {
	literals map[string]*node
	wild     *node
	leaf     places // nothing follows
	end      places // a slash follows, and then nothing
	rest     places // a slash follows, and then anything
}

// newTable returns the table of these patterns. Of those that cannot be in it, mistake is told.
func newTable(matches []string, mistake func(i int, err error)) *table {
	t := &table{exact: tree{}, folded: tree{}}
	mux, lower := http.NewServeMux(), http.NewServeMux() // know which patterns are in each other's way
	groups := map[string]places{}                        // by their text in lower case
	for i, match := range matches {
		p, err := parsePattern(match)
		if err == nil {
			if err = register(mux, p.String(), http.NotFoundHandler()); err != nil {
				err = fmt.Errorf("is %s: %w", strictyaml.Quote(match), err)
			}
		}
		t.patterns = append(t.patterns, p)
		if err != nil {
			mistake(i, err)
			continue
		}
		t.hosts = t.hosts || p.host != ""
		t.capitals = t.capitals || p.String() != p.write(strings.ToLower, false)
		t.exact.add(p, places{i}, false)
		groups[p.folded()] = append(groups[p.folded()], i)
	}
	for _, text := range slices.SortedFunc(maps.Keys(groups), func(a, b string) int { return groups[a][0] - groups[b][0] }) {
		group := groups[text]
		if err := register(lower, text, http.NotFoundHandler()); err != nil {
			mistake(group[0], fmt.Errorf("is %s, which is matched without regard to upper and lower case too: %w",
				strictyaml.Quote(matches[group[0]]), err))
			continue
		}
		t.folded.add(t.patterns[group[0]], group, true)
	}
	return t
}

// add puts a pattern into the tree.
func (t tree) add(p pattern, at places, folded bool) {
	if t[p.host] == nil {
		t[p.host] = map[string]*node{}
	}
	n := t[p.host][p.method]
	if n == nil {
		n = &node{}
		t[p.host][p.method] = n
	}
	for _, s := range p.segments {
		switch {
		case s.rest:
			n.rest = at
			return
		case s.end:
			n.end = at
			return
		case s.wild:
			if n.wild == nil {
				n.wild = &node{}
			}
			n = n.wild
		default:
			if folded {
				s.text = strings.ToLower(s.text)
			}
			if n.literals == nil {
				n.literals = map[string]*node{}
			}
			if n.literals[s.text] == nil {
				n.literals[s.text] = &node{}
			}
			n = n.literals[s.text]
		}
	}
	n.leaf = at
}

// match returns the most specific pattern that matches a request, or those of its place.
func (t tree) match(host, method string, path []string) places {
	if host != "" {
		if found := match(t[host], method, path); found != nil {
			return found
		}
	}
	return match(t[""], method, path)
}

func match(by map[string]*node, method string, path []string) places {
	if found := by[method].match(path); found != nil {
		return found
	}
	if method == http.MethodHead {
		if found := by[http.MethodGet].match(path); found != nil {
			return found
		}
	}
	return by[""].match(path)
}

// match finds what is left of a path. A part that is not the last may be empty: only a wildcard
// matches it.
func (n *node) match(path []string) places {
	switch {
	case n == nil:
		return nil
	case len(path) == 0:
		return n.leaf
	case len(path) == 1 && path[0] == "":
		if n.end != nil {
			return n.end
		}
		return n.rest
	}
	if found := n.literals[path[0]].match(path[1:]); found != nil {
		return found
	}
	if found := n.wild.match(path[1:]); found != nil {
		return found
	}
	return n.rest
}
