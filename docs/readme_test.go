package docs_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// readme is the program at the top of the README: what is between the two marks.
func readme(ctx context.Context, userID string, tooManyRequests func(time.Duration) error) error {
	// README
	store, err := remote.Open("redis://127.0.0.1:6379", nil) // or remote.NewMemory()
	if err != nil {
		return err
	}
	limiter, err := tiered.New(store, tiered.Policy{Name: "per-user", Limit: tiered.PerSecond(100).WithBurst(200)}, nil)
	if err != nil {
		return err
	}
	defer limiter.Close(ctx) // gives back what this process has leased

	// per request:
	if d := limiter.Allow(ctx, userID); !d.Allowed {
		return tooManyRequests(d.RetryAfter) // d.Reason says why
	}
	// README
	return store.Close()
}

var _ = readme // compiled, not run: it has an address of its own

// The README's program is the one that compiles here, and what it names exists.
func TestReadmeIsTrue(t *testing.T) {
	toRoot(t)
	source, err := os.ReadFile("docs/readme_test.go")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(source), "\t// README\n")
	want := strings.TrimSpace(strings.ReplaceAll("\n"+parts[1], "\n\t", "\n"))
	block := regexp.MustCompile("(?s)```go\n(.*?)\n```").FindSubmatch(text)
	if got := strings.TrimSpace(string(block[1])); got != want {
		t.Errorf("the README says\n%s\n\nand this file\n%s", got, want)
	}
	for _, m := range regexp.MustCompile(`\]\(([^)#]+)\)`).FindAllSubmatch(text, -1) {
		if _, err := os.Stat(string(m[1])); err != nil {
			t.Errorf("the README links to %s: %v", m[1], err)
		}
	}
}

// Every target that a document names exists, and so does the page or the hunt that it is given.
func TestTargetsExist(t *testing.T) {
	toRoot(t)
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("(?m)(?:`|^ *)make ([a-z-]+)(?: (PAGE|HUNT)=([a-z-]+))?")
	for _, file := range append(documents, "README.md", "CONTRIBUTING.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(string(makefile), "\n"+m[1]+":") {
				t.Errorf("%s names `make %s`, which is not in the Makefile", file, m[1])
			}
			which := map[string]string{"PAGE": "page-", "HUNT": "hunt-"}[m[2]] + m[3]
			if m[2] != "" && !regexp.MustCompile(`(?m)^(?:define )?`+which+`(?: =|$)`).Match(makefile) {
				t.Errorf("%s names `make %s %s=%s`, which is not in the Makefile", file, m[1], m[2], m[3])
			}
		}
	}
}
