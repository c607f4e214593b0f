package scenario

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what is said now into testdata and sim/scenarios.md")

// A golden file is a list of entries: "== what it is about", the input, and after "--" what is said of it.
type golden struct{ title, input, output string }

func readGolden(t testing.TB, name string) (all []golden) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split("\n"+string(text), "\n== ")[1:] {
		title, rest, _ := strings.Cut(part, "\n")
		input, output, _ := strings.Cut("\n"+rest, "\n--\n")
		all = append(all, golden{title, strings.TrimPrefix(input, "\n"), strings.TrimSpace(output)})
	}
	return all
}

// checkGolden holds what say says of each input against the file, or writes it there.
func checkGolden(t *testing.T, name string, say func(t *testing.T, input string) string) {
	all := readGolden(t, name)
	if len(all) == 0 {
		t.Fatalf("%s has no entries", name)
	}
	var b strings.Builder
	for _, g := range all {
		got := ""
		t.Run(g.title, func(t *testing.T) {
			if got = say(t, g.input); got != g.output && !*update {
				t.Errorf("of\n%s\nis said\n%s\n\nand not\n%s", g.input, got, g.output)
			}
		})
		b.WriteString("== " + g.title + "\n" + strings.TrimPrefix("\n"+g.input, "\n") + "\n--\n" + got + "\n\n")
	}
	if *update {
		if err := os.WriteFile(filepath.Join("testdata", name), []byte(strings.TrimRight(b.String(), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// ordinary is a scenario without faults of its own, for inputs that begin with "+": these are lines that come to it.
const ordinary = `name    "ordinary"
limit   api rate=1000/s burst=1000
fleet   n=50
traffic poisson rate=1500/s
run     60s warmup=5s
`

func TestParseErrors(t *testing.T) {
	checkGolden(t, "parse.txt", func(t *testing.T, input string) string {
		if more, ok := strings.CutPrefix(input, "+"); ok {
			input = ordinary + strings.TrimPrefix(more, "\n")
		}
		s, err := Parse(input)
		var each Errors
		if !errors.As(err, &each) || s != nil || len(each) == 0 {
			t.Fatalf("%v, %v: want Errors, and nothing else", s, err)
		}
		for _, e := range each {
			if e.Line < 1 || e.Column < 1 {
				t.Errorf("without a place: %+v", e)
			}
		}
		return err.Error()
	})
}

func TestJSONErrors(t *testing.T) {
	checkGolden(t, "json.txt", func(t *testing.T, input string) string {
		s, err := ParseJSON([]byte(input))
		var each Errors
		if !errors.As(err, &each) || s != nil || len(each) == 0 {
			t.Fatalf("%v, %v: want Errors, and nothing else", s, err)
		}
		for _, e := range each {
			if e.Line != 0 {
				t.Errorf("at a wrong place: %+v", e)
			}
		}
		return err.Error()
	})
}
