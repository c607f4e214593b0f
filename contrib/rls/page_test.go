package rls

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The configuration of docs/service.md is valid, and the page has each name of the environment, and only these in the
// tables.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/service.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	_, block, _ := strings.Cut(page, "```yaml\n")
	block, _, _ = strings.Cut(block, "```")
	if c, err := Parse(File{Name: "docs/service.md", Text: []byte(block)}); err != nil || len(c.Policies()) != 1 ||
		!strings.Contains(page, c.Policies()[0].Name[:len("shop.user.second-token-bucket")]) {
		t.Errorf("%+v, %v", c, err)
	}
	settings, err := os.ReadFile("cmd/tieredd/settings.go")
	if err != nil {
		t.Fatal(err)
	}
	_, tables, _ := strings.Cut(page, "## Environment")
	tables, _, _ = strings.Cut(tables, "All others of envoyproxy/ratelimit")
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`env:"([A-Z_]+)"`).FindAllStringSubmatch(string(settings), -1) {
		known[m[1]] = true
		if !strings.Contains(tables, "`"+m[1]+"`") {
			t.Errorf("the page has not %s", m[1])
		}
	}
	for _, m := range regexp.MustCompile("`([A-Z_]{4,})`").FindAllStringSubmatch(tables, -1) {
		if !known[m[1]] {
			t.Errorf("there is no %s", m[1])
		}
	}
	if len(known) < 30 {
		t.Errorf("%d names", len(known))
	}
}
