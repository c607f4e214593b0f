package report

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// What stands between the markers of the page is what raw output that is kept says.
func TestDocumentIsGenerated(t *testing.T) {
	kept, err := filepath.Glob("../../../docs/bench/*.txt")
	if err != nil || len(kept) == 0 {
		t.Fatalf("no raw output is kept: %v", err)
	}
	written := false
	for _, raw := range kept {
		path, want, err := fatal.Get(ReadFile(raw))(t).Document("../../../docs")
		fatal.If(t, err)
		got := fatal.Get(os.ReadFile(path))(t)
		written = written || string(got) == want
	}
	if !written {
		t.Error("the page is not what the benchmarks' output says: run make bench, or in benchmarks go run ./cmd/bench -render")
	}
}

func TestReplace(t *testing.T) {
	text := "before\n" + begin + "\nold\n" + end + "\nafter\n"
	got, err := replace(text, "new\n")
	if want := "before\n" + begin + "\nnew\n" + end + "\nafter\n"; err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if again, err := replace(got, "new\n"); err != nil || again != got {
		t.Errorf("the second time %q, %v", again, err)
	}
	for _, text := range []string{
		"", begin, end, end + begin, begin + end + begin + end, begin + begin + end, begin + end + end, end + begin + end,
	} {
		if got, err := replace(text, "new\n"); err == nil {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}
