package scenario_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

var page = filepath.Join("..", "scenarios.md")

// The examples of the reference are valid, and the errors that it quotes are what is said.
func TestDocsExamples(t *testing.T) {
	text := fatal.Get(os.ReadFile(page))(t)
	block := func(language string) string {
		m := regexp.MustCompile("(?s)\n```"+language+"\n(.*?)\n```").FindAllSubmatch(text, -1)
		if len(m) != 1 {
			t.Fatalf("%d blocks of %q, want 1", len(m), language)
		}
		return string(m[0][1])
	}
	example := block("yaml")
	s := mustParse(t, example)
	cells := 1
	for _, a := range s.Sweep {
		cells *= len(a.Values)
	}
	if !strings.Contains(string(text), fmt.Sprintf("each combination, %d here", cells)) {
		t.Errorf("the example's sweep has %d combinations", cells)
	}
	for _, m := range regexp.MustCompile("`([a-z]+(?:\\.[a-z0-9]+)*)=([0-9][^`\\s]*)`").FindAllStringSubmatch(string(text), -1) {
		if err := mustParse(t, example).Set(m[1], m[2]); err != nil {
			t.Errorf("%s: %v", m[0], err)
		}
	}
	_, err := scenario.Parse("#\n#\n#\n#\n#\ntraffic:\n  - {shape: poisson, limit: api, rate: 1500}\nfaults:\n" +
		"  - {at: 20s, kind: blakhole}\n")
	for _, quoted := range strings.Split(block("text"), "\n") {
		for part := range strings.SplitSeq(quoted, "…") {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%q is quoted, and this is said:\n%v", part, err)
			}
		}
	}
}
