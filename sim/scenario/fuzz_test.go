package scenario

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
)

// seeds are all inputs of a golden file, and some that are right.
func seeds(f *testing.F, name string) {
	for _, g := range readGolden(f, name) {
		f.Add(strings.TrimPrefix(g.input, "+\n"))
		f.Add(ordinary + strings.TrimPrefix(g.input, "+\n"))
	}
	f.Add(settable)
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(doc))
}

// FuzzParse: any text is refused with places that are in it, or is what its canonical form says again.
func FuzzParse(f *testing.F) {
	seeds(f, "parse.txt")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			lines := strings.Split(text, "\n")
			for _, e := range checkErrors(t, s, err) {
				if e.Line < 1 || e.Line > len(lines)+1 || e.Column < 1 || e.Line <= len(lines) && e.Column > len(lines[e.Line-1])+1 {
					t.Errorf("a place that is none: %v", e)
				}
			}
			return
		}
		checkSame(t, s)
	})
}

// FuzzParseJSON: the same of JSON; and what encoding/json makes of what was accepted is the same too.
func FuzzParseJSON(f *testing.F) {
	for _, g := range readGolden(f, "json.txt") {
		f.Add([]byte(g.input))
	}
	for _, text := range []string{ordinary, settable} {
		data, err := json.Marshal(mustParse(f, text))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseJSON(data)
		if err != nil {
			checkErrors(t, s, err)
			return
		}
		var plain Scenario
		if err := json.Unmarshal(data, &plain); err != nil {
			t.Fatalf("encoding/json refuses it: %v", err)
		}
		plain.sortFaults()
		if got, want := plain.String(), s.String(); got != want {
			t.Errorf("encoding/json reads\n%s\nand not\n%s", got, want)
		}
		checkSame(t, s)
	})
}

// FuzzSet: a path and a value that are refused change nothing; others give a scenario that can be printed, and
// parsed if it is valid.
func FuzzSet(f *testing.F) {
	for _, g := range readGolden(f, "set.txt") {
		for line := range strings.Lines(g.input) {
			path, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			f.Add(settable, path, value)
		}
	}
	f.Fuzz(func(t *testing.T, text, path, value string) {
		s, err := Parse(text)
		if err != nil {
			s = mustParse(t, settable)
		}
		before := s.Clone()
		if err := s.Set(path, value); err != nil {
			if !reflect.DeepEqual(s, before) {
				t.Errorf("%v, and yet\n%s\nbecame\n%s", err, before, s)
			}
			return
		}
		if s.Validate() == nil {
			checkSame(t, s)
		}
	})
}

func checkErrors(t *testing.T, s *Scenario, err error) Errors {
	t.Helper()
	var all Errors
	if !errors.As(err, &all) || len(all) == 0 || s != nil {
		t.Fatalf("%v, %v: want Errors alone", s, err)
	}
	for _, e := range all {
		if e.Text == "" || strings.ContainsFunc(e.Text, func(r rune) bool { return r < ' ' }) {
			t.Errorf("not a line: %q", e.Text)
		}
	}
	return all
}

// checkSame is that s is valid and the same after printing and parsing.
func checkSame(t *testing.T, s *Scenario) {
	t.Helper()
	if err := s.Validate(); err != nil {
		t.Fatalf("parsed, but not valid: %v", err)
	}
	text := s.String()
	again, err := Parse(text)
	if err != nil {
		t.Fatalf("%v\nof\n%s", err, text)
	}
	if !reflect.DeepEqual(again, s) || again.String() != text {
		t.Errorf("printed\n%s\nand then\n%s", text, again)
	}
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > maxJSON {
		t.Fatalf("%d bytes of JSON", len(data))
	}
	again, err = ParseJSON(data)
	if err != nil {
		t.Fatalf("%v\nof\n%s", err, data)
	}
	if !reflect.DeepEqual(again, s) {
		t.Errorf("written\n%s\nand then\n%s", data, again)
	}
}
