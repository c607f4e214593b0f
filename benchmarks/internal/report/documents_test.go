package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What stands between the markers of the documents is what the raw output that is kept says.
func TestDocumentsAreGenerated(t *testing.T) {
	kept, err := filepath.Glob("../../../docs/bench/*.txt")
	if err != nil || len(kept) == 0 {
		t.Fatalf("no raw output is kept: %v", err)
	}
	want := map[string][]string{}
	for _, path := range kept {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Read(strings.NewReader(string(text)), path)
		if err != nil {
			t.Fatal(err)
		}
		claims, err := r.Claims()
		if err != nil {
			t.Fatal(err)
		}
		want["performance.md"] = append(want["performance.md"], r.Tables())
		want["figures.md"] = append(want["figures.md"], claims)
	}
	for name, path := range map[string]string{"performance.md": "../../../docs/internals/performance.md", "figures.md": "../../../docs/figures.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, body := range want[name] {
			again, err := Replace(string(text), body)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			found = found || again == string(text)
		}
		if !found {
			t.Errorf("%s is not what the benchmarks' output says: run make bench, or in benchmarks go run ./cmd/bench -render", name)
		}
	}
}
