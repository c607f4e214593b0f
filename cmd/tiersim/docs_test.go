package main_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

const page = "../../sim/README.md"

// Every command of sim/README.md runs, in the order of the page and in one directory, and does not
// fail unless the page says that it may.
func TestPage(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute, and two under the race detector")
	}
	text := fatal.Get(os.ReadFile(page))(t)
	file := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(text)
	if file == nil {
		t.Fatal("the page has no scenario")
	}
	t.Chdir(t.TempDir())
	fatal.If(t, os.WriteFile("checkout.yaml", file[1], 0o600))
	commands := 0
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllSubmatch(text, -1) {
		for line := range strings.Lines(string(block[1])) {
			line, mayFail := strings.CutSuffix(strings.TrimSpace(line), " || true")
			line, ok := strings.CutPrefix(line, "go run ./cmd/tiersim ")
			if !ok {
				t.Errorf("%q is no command of tiersim", line)
				continue
			}
			commands++
			out, problems, status := run(t, strings.Fields(line)...)
			if status == notRunnable || status == broken && !mayFail || status == passed && mayFail {
				t.Errorf("tiersim %s: status %d, %s\n%s", line, status, problems, out)
			}
		}
	}
	if commands < 12 {
		t.Errorf("only %d commands on the page", commands)
	}
	for _, name := range []string{"outage.html", "outage.json", "other.json", "report.json"} {
		if info, err := os.Stat(name); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The test in Go on the page is the example that compiles and runs, and its scenario the one that
// this runs.
func TestPageExample(t *testing.T) {
	text := fatal.Get(os.ReadFile(page))(t)
	for language, file := range map[string]string{"go": "example_test.go", "yaml": "testdata/checkout.yaml"} {
		source := fatal.Get(os.ReadFile("../../sim/" + file))(t)
		block := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindSubmatch(text)
		if block == nil || !strings.Contains(string(source), string(block[1])) {
			t.Errorf("the page's %s is not in sim/%s", language, file)
		}
	}
}

// The commands of docs/configuration.md run with the file of policies that the page shows.
func TestConfigurationPage(t *testing.T) {
	text := fatal.Get(os.ReadFile("../../docs/configuration.md"))(t)
	policies := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(text)
	commands := regexp.MustCompile(`(?m)^tiersim (.*)$`).FindAllSubmatch(text, -1)
	if policies == nil || len(commands) != 2 {
		t.Fatalf("the page has %d commands and the policies %q", len(commands), policies)
	}
	t.Chdir(t.TempDir())
	fatal.If(t, os.WriteFile("policies.yaml", policies[1], 0o600))
	for _, c := range commands {
		out, problems, status := run(t, strings.Fields(string(c[1]))...)
		if status != passed || !strings.Contains(out, "100") {
			t.Errorf("tiersim %s: status %d, %s\n%s", c[1], status, problems, out)
		}
	}
}

// The runs that users' pages name in their text pass.
func TestRunsInText(t *testing.T) {
	if testing.Short() {
		t.Skip("some seconds")
	}
	pages := fatal.Get(filepath.Glob("../../docs/*.md"))(t)
	named := regexp.MustCompile("`(?:go run ./cmd/)?tiersim (run [^`]+)`")
	runs := 0
	for _, name := range pages {
		text := strings.Join(strings.Fields(string(fatal.Get(os.ReadFile(name))(t))), " ")
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			runs++
			if out, problems, status := run(t, strings.Fields(m[1])...); status != passed {
				t.Errorf("%s: tiersim %s: status %d, %s\n%s", name, m[1], status, problems, out)
			}
		}
	}
	if runs < 2 {
		t.Errorf("only %d runs: the pattern is wrong", runs)
	}
}

// `make demo` begins with a sentence about each of the three fail modes, and names the pages it
// wrote in its last line.
func TestDemo(t *testing.T) {
	makefile := fatal.Get(os.ReadFile("../../Makefile"))(t)
	m := regexp.MustCompile(`(?m)^demo:.*\n\t@mkdir -p build\n\tgo run \./cmd/tiersim (.*)$`).FindSubmatch(makefile)
	if m == nil {
		t.Fatal("the demo of the Makefile has another form")
	}
	t.Chdir(t.TempDir())
	fatal.If(t, os.Mkdir("build", 0o700))
	out, problems, status := run(t, strings.Fields(string(m[1]))...)
	if status != passed {
		t.Errorf("status %d, %s\n%s", status, problems, out)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, sentence := range []string{
		`^fail-local: nobody within the limit refused, \d+ tokens too many, normal again after [\d.]+ s$`,
		`^fail-open: nobody within the limit refused, \d+ tokens too many, normal again after [\d.]+ s$`,
		`^fail-closed: [\d.]+ % of the requests within the limit refused, no token too many, normal again after [\d.]+ s$`,
	} {
		if !regexp.MustCompile(sentence).MatchString(lines[i]) {
			t.Errorf("line %d is %q, want %s", i+1, lines[i], sentence)
		}
	}
	for _, part := range []string{"\nPASS  outage: ", "\nPASS  outage-open: ", "\nPASS  outage-closed: "} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
	pages, ok := strings.CutPrefix(lines[len(lines)-1], "HTML: ")
	for name := range strings.SplitSeq(pages, ", ") {
		if info, err := os.Stat(name); !ok || err != nil || info.Size() < 5_000 {
			t.Errorf("the last line is %q: %v", lines[len(lines)-1], err)
		}
	}
}
