package report

import (
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// What TestDocumentsAreGenerated does not show, because the runs that are kept are complete.

const one = "BenchmarkDecision/load=hot/limiter=ours/goroutines=1-2	100	50 ns/op	1500000 client-ns/op\n"

func TestWhatIsNoRun(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":       "PASS\n",
		"another":       one + "BenchmarkAllow-2	100	50 ns/op\n",
		"half a result": one + "BenchmarkDecision/load=hot/limiter=ours/goroutines=1-2	100	50\n",
	} {
		if _, err := Read(strings.NewReader(text), "raw"); err == nil {
			t.Errorf("%s is read without an error", name)
		}
	}
}

func TestPartOfARun(t *testing.T) {
	r := fatal.Get(Read(strings.NewReader(one), "raw"))(t)
	if text := r.Tables(); strings.Contains(text, "at random") || !strings.Contains(text, "| **ours** | 50 ns | 50 ns | 1.5 ms |") {
		t.Errorf("a table of nothing, or nothing of ours in\n%s", text)
	}
	if _, err := r.Claims(); err == nil || !strings.Contains(err.Error(), "redis_rate under cold") {
		t.Errorf("claims about what was not measured: %v", err)
	}
}
