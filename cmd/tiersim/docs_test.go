package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

const page = "../../sim/README.md"

// Every command of sim/README.md runs, in the order of the page and in one directory, and does not fail unless
// the page says that it may.
func TestPage(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute, and two under the race detector")
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	file := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(text)
	if file == nil {
		t.Fatal("the page has no scenario")
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("checkout.yaml", file[1], 0o600); err != nil {
		t.Fatal(err)
	}
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
	if commands < 15 {
		t.Errorf("only %d commands on the page", commands)
	}
	for _, name := range []string{"outage.html", "outage.json", "other.json", "report.json"} {
		if info, err := os.Stat(name); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The test in Go on the page is the example that compiles and runs.
func TestPageExample(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("../../sim/example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(text)
	if block == nil || !strings.Contains(string(source), string(block[1])) {
		t.Error("the page's test in Go is not in sim/example_test.go")
	}
}

// Its scenario is the one that the example runs.
func TestPageScenario(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	scenario, err := os.ReadFile("../../sim/testdata/checkout.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "```yaml\n"+string(scenario)+"```") {
		t.Error("the page's scenario is not sim/testdata/checkout.yaml")
	}
}

// `make demo` shows the three fail modes, each with what it promises, and names the pages it wrote in its last line.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("20 s under the race detector")
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^demo:.*\n\t@mkdir -p build\n\tgo run \./cmd/tiersim (.*)$`).FindSubmatch(makefile)
	if m == nil {
		t.Fatal("the demo of the Makefile has another form")
	}
	command := string(m[1])
	t.Chdir(t.TempDir())
	if err := os.Mkdir("build", 0o700); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	out, problems, status := run(t, strings.Fields(command)...)
	t.Logf("%v", time.Since(start))
	if status != passed {
		t.Errorf("status %d, %s\n%s", status, problems, out)
	}
	for _, part := range []string{
		"outage", "outage-open", "outage-closed", "\nPASS  outage: ",
		"\nPASS  outage-open: ", "\nPASS  outage-closed: ",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	pages, ok := strings.CutPrefix(lines[len(lines)-1], "HTML: ")
	for name := range strings.SplitSeq(pages, ", ") {
		if info, err := os.Stat(name); !ok || err != nil || info.Size() < 10_000 {
			t.Errorf("the last line is %q: %v", lines[len(lines)-1], err)
		}
	}
}
