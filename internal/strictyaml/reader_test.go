package strictyaml_test

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
)

// read reads a list of words under the key "all", and returns what is wrong.
func read(name, text string) (words []string, err error) {
	root, err := strictyaml.Document(name, []byte(text), 1000, "a list")
	if err != nil {
		return nil, err
	}
	r := &strictyaml.Reader{Name: name}
	r.Pairs("", root, func(key, value *yaml.Node) {
		r.List(key.Value, value, func(_ int, n *yaml.Node) {
			if text, ok := r.Text(key.Value, n); ok {
				words = append(words, text)
			}
		})
	})
	r.Sort()
	return words, r.Err()
}

func TestReader(t *testing.T) {
	for text, want := range map[string]string{
		"all: [a, 'b', 3]":                  "",
		"\ufeffall: [a]":                    "",
		`{"all":["a","é"]}`:                 "",
		"":                                  "f.yaml is empty: must have a list",
		"all: []\n---\nall: []\n":           "f.yaml has a second document: must be one",
		"all: [a\n":                         "f.yaml:2:1: did not find expected ',' or ']', in what begins at 1:6",
		"all: " + strings.Repeat(" ", 1000): "f.yaml has more than 1000 bytes",
		"all: [\xff]":                       "f.yaml:1:7: invalid leading UTF-8 octet",
		"all: [a]\nall: [b]\n":              "f.yaml:2:1: all is there twice: the first is in line 1",
		"all: [&x a, *x]\n":                 "f.yaml:1:13: all is an alias, and aliases are not read: must be a text",
		"all: {a: b}\n":                     "f.yaml:1:6: all is a mapping: must be a list",
		"all: [[], ~]\n[c]: d\n":            "f.yaml:1:7: all is a list: must be a text\nf.yaml:1:11: all is \"~\": must be a text\nf.yaml:2:1: : a name is a list: must be a text",
		"all: [" + strings.Repeat("~,", 60) + "a]": "f.yaml: and 10 more mistakes",
	} {
		_, err := read("f.yaml", text)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want && (want == "" || !strings.HasSuffix(got, want)) {
			t.Errorf("%.40q: said\n%s\nwant\n%s", text, got, want)
		}
	}
}

// Mistakes are told in the order of the file, and those at nodes from elsewhere have no place.
func TestOrder(t *testing.T) {
	r := &strictyaml.Reader{}
	for _, n := range []yaml.Node{{Line: 2, Column: 1}, {Line: 1, Column: 9}, {Line: 1, Column: 3}, {}} {
		r.Bad(&n, "wrong")
	}
	r.Sort()
	if got, want := r.Err().Error(), "wrong\n1:3: wrong\n1:9: wrong\n2:1: wrong"; got != want {
		t.Errorf("said\n%s\nwant\n%s", got, want)
	}
}
