package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// What is done to find more than one mistake is bounded.
const (
	mostSyntax = 20       // mistakes that are told
	mostRead   = 32 << 20 // bytes that are read again for them
)

// mark is a place in a file. Line and column count from 1.
type mark struct{ line, column int }

// stop is where and why a reader of YAML has stopped.
type stop struct {
	text  string
	at    mark // 0 if it is not known
	begin mark // of what does not end where it should; 0 if there is none
}

// Syntax returns why a text is no YAML: all mistakes that can be told, each with line and column,
// or nil. To find the next mistake, the element of a list or of a mapping that has the last one is
// left out. err is what the reader said.
func Syntax(name string, data []byte, err error) error {
	r := Reader{Name: name}
	s, read := stopOf(data), 0
	if s == nil { // it is no mistake of the text
		return fmt.Errorf("%s: %w", name, err)
	}
	lines, anchors := bytes.Split(slices.Clone(data), []byte("\n")), false
	for len(r.mistakes) < mostSyntax {
		text := s.String()
		if i := s.at.line - 1; s.text == noToken && i >= 0 && i < len(lines) && bytes.IndexByte(lines[i], '\t') == s.at.column-1 {
			text = "a tab: lines must be indented by spaces"
		}
		r.Bad(&yaml.Node{Line: s.at.line, Column: s.at.column}, "%s", text)
		var rest [][]byte
		next := s
		for _, line := range s.of(lines) {
			from, to := element(lines, line)
			if from == to || read > mostRead || *next != *s {
				continue
			}
			rest = slices.Clone(lines)
			clear(rest[from:to])
			text := bytes.Join(rest, []byte("\n"))
			if read += len(text); bytes.IndexByte(bytes.Join(lines[from:to], nil), '&') >= 0 {
				anchors = true
			}
			if next = stopOf(text); next == nil {
				return r.Err()
			}
		}
		if *next == *s || anchors && next.text == unknownAnchor {
			break // it is there only because something was left out
		}
		s, lines = next, rest
	}
	return r.Err()
}

// of returns lines of the elements that the mistake may be in, the likeliest first. An element that
// does not end is noticed where the next one begins.
func (s *stop) of(lines [][]byte) []int {
	if s.begin.line > 0 {
		return []int{s.begin.line}
	}
	if i := s.at.line - 1; i > 0 && i < len(lines) && s.at.column == Indent(lines[i])+1 {
		for i--; i > 0 && Indent(lines[i]) < 0; {
			i--
		}
		return []int{i + 1, s.at.line}
	}
	return []int{s.at.line}
}

// What a reader says.
const (
	unknownAnchor = "unknown anchor"
	noToken       = "found character that cannot start any token"
)

func (s *stop) String() string {
	if s.begin.line == 0 || s.begin.line == s.at.line {
		return s.text
	}
	return fmt.Sprintf("%s, in what begins at %d:%d", s.text, s.begin.line, s.begin.column)
}

// stopOf reads the first document of a text. It returns nil if that is YAML.
func stopOf(data []byte) *stop {
	d := yaml.NewDecoder(bytes.NewReader(data))
	err := d.Decode(new(yaml.Node))
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	// The library tells no column, often the line before, and the names of anchors. Its state is
	// more exact. If another version of it has no such state, what it says has to do.
	s := &stop{text: strings.TrimPrefix(err.Error(), "yaml: ")}
	state := field(reflect.ValueOf(d), "parser")
	parser := field(state, "parser")
	problem, at := field(parser, "problem"), markOf(field(parser, "problem_mark"))
	switch {
	case strings.HasPrefix(s.text, unknownAnchor):
		s.text, s.at = unknownAnchor, markOf(field(field(state, "event"), "start_mark"))
	case problem.Kind() != reflect.String || problem.String() == "":
	case at != mark{1, 1}:
		s.text, s.at = problem.String(), at
		if c := field(parser, "context").String(); c != "" && !strings.Contains(c, "block") { // a block ends with the file
			if begin := markOf(field(parser, "context_mark")); begin != at {
				s.begin = begin
			}
		}
	default: // it is about bytes
		s.text = problem.String()
		if offset := field(parser, "problem_offset"); offset.CanInt() {
			s.at = placeOf(data, int(offset.Int()))
		}
	}
	return s
}

// field returns a field of a struct, or of what v points to. It is the zero Value if there is none.
func field(v reflect.Value, name string) reflect.Value {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	return v.FieldByName(name)
}

func markOf(v reflect.Value) mark {
	line, column := field(v, "line"), field(v, "column")
	if !line.CanInt() || !column.CanInt() {
		return mark{}
	}
	return mark{int(line.Int()) + 1, int(column.Int()) + 1}
}

// placeOf returns the place of a byte.
func placeOf(data []byte, offset int) mark {
	before := data[:min(max(offset, 0), len(data))]
	begin := bytes.LastIndexByte(before, '\n') + 1
	return mark{1 + bytes.Count(before, []byte("\n")), 1 + utf8.RuneCount(before[begin:])}
}

// element returns the lines of the element of a list or of a mapping that a line belongs to, of
// those that are in a field of the file. They are none if it belongs to none.
func element(lines [][]byte, line int) (from, to int) {
	at := line - 1
	if at < 0 || at >= len(lines) {
		return 0, 0
	}
	head := at
	for head >= 0 && !isHead(lines[head]) {
		head--
	}
	if head < 0 || head == at || bytes.IndexByte(lines[head], 0) >= 0 {
		return 0, 0
	}
	if name, _, _ := bytes.Cut(lines[head], []byte(" #")); !bytes.HasSuffix(bytes.TrimSpace(name), []byte(":")) {
		return 0, 0 // there is no block of lines below it
	}
	first := head + 1
	for first < at && Indent(lines[first]) < 0 {
		first++
	}
	within := func(i int) bool { return Indent(lines[i]) < 0 || Indent(lines[i]) > Indent(lines[first]) }
	from, to = at, at+1
	for from > first && within(from) {
		from--
	}
	for to < len(lines) && within(to) {
		to++
	}
	return from, to
}

// isHead reports whether a line begins a field of the file.
func isHead(line []byte) bool { return Indent(line) == 0 && line[0] != '-' }

// Indent returns how far a line is indented, -1 if there is nothing in it.
func Indent(line []byte) int {
	text := bytes.TrimLeft(line, " ")
	switch {
	case len(bytes.TrimSpace(text)) == 0, text[0] == '#':
		return -1
	case text[0] == '\t': // which YAML does not allow: it is meant to be in what is above
		return len(line)
	}
	return len(line) - len(text)
}
