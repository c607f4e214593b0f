package scenario_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

var update = flag.Bool("update", false, "write what is said now into testdata and schema.json")

// A golden file is a list of entries: "== what it is about", the input, and after "--" what is said
// of it.
type golden struct{ title, input, output string }

func readGolden(t testing.TB, name string) (all []golden) {
	t.Helper()
	text := fatal.Get(os.ReadFile(filepath.Join("testdata", name)))(t)
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
		b.WriteString("== " + g.title + "\n" + g.input + "\n--\n" + got + "\n\n")
	}
	if *update {
		text := strings.TrimRight(b.String(), "\n") + "\n"
		fatal.If(t, os.WriteFile(filepath.Join("testdata", name), []byte(text), 0o644))
	}
}

// ordinary is a scenario without faults.
const ordinary = `name: ordinary
limits: [{name: api, rate: 1000/s, burst: 1000}]
fleet: {n: 50}
traffic: [{shape: poisson, rate: 1500/s}]
run: 60s
warmup: 5s
`

// full is the input of an entry. One that begins with + has the fields of the ordinary scenario
// too, where it has none.
func full(input string) string {
	more, ok := strings.CutPrefix(input, "+\n")
	if !ok {
		return input
	}
	text := ordinary
	for _, m := range regexp.MustCompile(`(?m)^[a-z]+`).FindAllString(more, -1) {
		text = regexp.MustCompile(`(?m)^`+m+`:.*\n`).ReplaceAllString(text, "")
	}
	return text + more
}

// Each mistake is told, with its place, and no scenario comes with one.
func TestErrors(t *testing.T) {
	checkGolden(t, "errors.txt", func(t *testing.T, input string) string {
		s, err := scenario.ParseFile("x.yaml", full(input))
		if err == nil || s != nil {
			t.Fatalf("%v, %v: want an error, and nothing else", s, err)
		}
		for line := range strings.Lines(err.Error()) {
			if !regexp.MustCompile(`^x\.yaml(:\d+:\d+: | is | has |: yaml: line \d)`).MatchString(line) {
				t.Errorf("without a place: %s", line)
			}
		}
		return err.Error()
	})
}
