package rls

import (
	"bytes"
	"errors"
	"io"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
)

// partSize is how many bytes of descriptors are read at once. The nodes of a file take twenty times
// its size. With 20 000 rules that was the most of what a reload took beside the rules themselves.
const partSize = 64 << 10

// part is a piece of a file.
type part struct {
	text []byte
	line int // lines before it
}

// parts divides a file into its descriptors, as lists of some at a time, and the rest with empty
// lines in their place. There are none if the file is small, or its descriptors are not a list in
// lines of their own. They may be no YAML.
func parts(text []byte) (rest []byte, lists []part) {
	if len(text) < 2*partSize || bytes.IndexByte(text, 0) >= 0 {
		return nil, nil
	}
	within, indent := false, -1   // the descriptors, and how far they are indented
	begin, from, line := -1, 0, 0 // of the list that is open, and of the next line
	end := func() {
		if begin >= 0 {
			lists[len(lists)-1].text, begin = text[begin:from], -1
		}
	}
	for one := range bytes.Lines(text) {
		at := strictyaml.Indent(one)
		item := at >= 0 && bytes.HasPrefix(one[at:], []byte("- "))
		switch {
		case at == 0 && !item:
			end()
			if within = bytes.Equal(bytes.TrimSpace(one), []byte("descriptors:")); within && indent >= 0 {
				return nil, nil // there are two
			}
		case within && item && (indent < 0 || at == indent):
			if indent = at; begin < 0 || from-begin > partSize {
				end()
				begin, lists = from, append(lists, part{line: line})
			}
		case within && at >= 0 && at <= max(indent, 0):
			return nil, nil // no such list
		}
		if begin < 0 {
			rest = append(rest, one...)
		} else {
			rest = append(rest, '\n')
		}
		from, line = from+len(one), line+1
	}
	end()
	return rest, lists
}

// parseParts reads a file in parts. It reports false, and has read nothing, if it cannot: then the
// file is read as a whole, because only so all that is wrong with it can be told.
func (p *parser) parseParts(text []byte) bool {
	rest, lists := parts(text)
	for _, l := range lists {
		if n := one(l.text); n == nil || n.Kind != yaml.SequenceNode {
			return false
		}
	}
	top := one(rest)
	if lists == nil || top == nil {
		return false
	}
	root, path := p.domain(top)
	for _, l := range lists {
		p.line = l.line
		p.descriptors(root, path, one(l.text))
	}
	p.line = 0
	return true
}

// one returns the root of the only document in a text, or nil.
func one(text []byte) *yaml.Node {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc, next yaml.Node
	if d.Decode(&doc) != nil || !errors.Is(d.Decode(&next), io.EOF) {
		return nil
	}
	return doc.Content[0]
}
