package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// Every block of Go on a page stands in a test file beside the page, or in examples elsewhere. So
// it compiles, is formatted, and runs where a test runs it. A block may begin deeper in the test
// file. A line "..." leaves something out: the parts before and after it are looked for one by one.
func TestCodeOfPages(t *testing.T) {
	toRoot(t)
	var sources [][]string
	tests := append(files(t, "docs/*_test.go"), files(t, "contrib/*/example_test.go")...)
	for _, file := range append(tests, "sim/example_test.go", "tiered/hot_key_test.go") {
		sources = append(sources, strings.Split(read(t, file), "\n"))
	}
	blocks := 0
	for _, page := range files(t, "docs/*.md") {
		for _, m := range regexp.MustCompile("(?s)\n```go\n(.*?)\n```\n").FindAllStringSubmatch(read(t, page), -1) {
			blocks++
			for part := range splitBlock(m[1]) {
				if !standsIn(part, sources) {
					t.Errorf("no test file has this code of %s:\n%s", page, strings.Join(part, "\n"))
				}
			}
		}
	}
	if blocks < 20 {
		t.Errorf("only %d blocks: the pattern is wrong", blocks)
	}
}

// splitBlock yields the parts of a block between its lines "...".
func splitBlock(block string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for part := range strings.SplitSeq("\n"+block+"\n", "\n...\n") {
			if part = strings.Trim(part, "\n"); part != "" && !yield(strings.Split(part, "\n")) {
				return
			}
		}
	}
}

// standsIn reports whether a source has the lines of part, one after the other, all indented by the
// same more.
func standsIn(part []string, sources [][]string) bool {
	for _, source := range sources {
		for first := 0; first+len(part) <= len(source); first++ {
			indent, ok := strings.CutSuffix(source[first], part[0])
			if !ok || strings.Trim(indent, "\t") != "" {
				continue
			}
			same := 1
			for same < len(part) && (source[first+same] == indent+part[same] || source[first+same]+part[same] == "") {
				same++
			}
			if same == len(part) {
				return true
			}
		}
	}
	return false
}

// The first line of each page for users says who the page is for.
func TestPagesSayWhoTheyAreFor(t *testing.T) {
	toRoot(t)
	for _, page := range files(t, "docs/*.md") {
		if _, text, _ := strings.Cut(read(t, page), "\n\n"); !strings.HasPrefix(text, "For ") {
			t.Errorf("%s begins with %.60q, and does not say who it is for", page, text)
		}
	}
}

// Prose is wrapped at 100 columns, so that a change shows what it changes.
func TestProseIsWrapped(t *testing.T) {
	toRoot(t)
	made := regexp.MustCompile("(?ms)^ *```.*?^ *```$|^    .*?$|<!-- made by .*?<!-- end of ")
	for _, page := range slices.Concat([]string{"CONTRIBUTING.md", "CHANGELOG.md"}, files(t, "docs/*.md"), files(t, "docs/*/*.md")) {
		for line := range strings.Lines(made.ReplaceAllString(read(t, page), "")) {
			text := strings.TrimLeft(line, "-> 0123456789.")
			if utf8.RuneCountInString(line) > 101 && strings.Contains(text, " ") && text[0] != '|' && text[0] != '#' {
				t.Errorf("%s: a line of more than 100 characters: %.60s…", page, text)
			}
		}
	}
}

// files returns the names that match a pattern, which must be some.
func files(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %v, %v", pattern, names, err)
	}
	return names
}

func read(t *testing.T, name string) string {
	t.Helper()
	text := fatal.Get(os.ReadFile(name))(t)
	return string(text)
}
