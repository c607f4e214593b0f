package docs_test

import (
	"context"
	"os"
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
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("make ([a-z]+)").FindAllSubmatch(text, -1) {
		if !strings.Contains(string(makefile), "\n"+string(m[1])+":") {
			t.Errorf("the README names `make %s`, which is not in the Makefile", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`\]\(([^)#]+)\)`).FindAllSubmatch(text, -1) {
		if _, err := os.Stat(string(m[1])); err != nil {
			t.Errorf("the README links to %s: %v", m[1], err)
		}
	}
}
