package docs_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The README fits on two screens. Whatever needs more words belongs on a page below docs.
func TestReadmeIsShort(t *testing.T) {
	toRoot(t)
	if n := len(strings.Fields(read(t, "README.md"))); n > 1000 {
		t.Errorf("the README has %d words, and may have 1000", n)
	}
}

// The pages for users are the README and docs/*.md. Nobody reads more than this, so a new fact takes
// the place of an old one. Words are those that wc -w counts, in code and tables too.
func TestPagesForUsersAreShort(t *testing.T) {
	toRoot(t)
	for _, bound := range []struct {
		pages string
		words int
	}{
		{"docs/*.md", 18_000}, // with the README
		{"docs/service*.md", 3000},
		{"docs/standing.md", 900},
		{"docs/at-once.md", 700},
	} {
		pages, n := files(t, bound.pages), 0
		if bound.pages == "docs/*.md" {
			pages = append(pages, "README.md")
		}
		for _, page := range pages {
			n += len(strings.Fields(read(t, page)))
		}
		if n > bound.words {
			t.Errorf("%s: %d words, and may have %d", bound.pages, n, bound.words)
		}
	}
}

// Every target that a document names exists, and so does the page or the hunt that it is given.
func TestTargetsExist(t *testing.T) {
	toRoot(t)
	makefile := read(t, "Makefile")
	documents := slices.Concat([]string{"README.md", "CONTRIBUTING.md"}, files(t, "docs/*.md"), files(t, "docs/*/*.md"), files(t, "sim/*.md"))
	named := regexp.MustCompile("(?m)(?:`|^ *)make ([a-z-]+)(?: (PAGE|HUNT)=([a-z-]+))?")
	for _, file := range documents {
		for _, m := range named.FindAllStringSubmatch(read(t, file), -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s names `make %s`, which is not in the Makefile", file, m[1])
			}
			which := map[string]string{"PAGE": "page-", "HUNT": "hunt-"}[m[2]] + m[3]
			if m[2] != "" && !regexp.MustCompile(`(?m)^(?:define )?`+which+`(?: =|$)`).MatchString(makefile) {
				t.Errorf("%s names `make %s %s=%s`, which is not in the Makefile", file, m[1], m[2], m[3])
			}
		}
	}
}
