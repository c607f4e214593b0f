package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the README links to exists: files, directories, and headings of pages.
func TestReadmeLinks(t *testing.T) {
	toRoot(t)
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	links := regexp.MustCompile(`\]\(([^):#]+)(?:#([^)]+))?\)`).FindAllStringSubmatch(string(readme), -1)
	if len(links) < 15 {
		t.Errorf("only %d links: the pattern is wrong", len(links))
	}
	for _, m := range links {
		if _, err := os.Stat(m[1]); err != nil {
			t.Errorf("the README links to %s: %v", m[1], err)
			continue
		}
		if m[2] == "" {
			continue
		}
		page, err := os.ReadFile(m[1])
		if err != nil {
			t.Error(err)
		} else if !headings(string(page))[m[2]] {
			t.Errorf("the README links to %s, which has no heading #%s", m[1], m[2])
		}
	}
}

// The README fits on two screens. Whatever needs more words belongs on a page below docs.
func TestReadmeIsShort(t *testing.T) {
	toRoot(t)
	if n := len(strings.Fields(read(t, "README.md"))); n > 1300 {
		t.Errorf("the README has %d words, and may have 1300", n)
	}
}

// Every target that a document names exists, and so does the page or the hunt that it is given.
func TestTargetsExist(t *testing.T) {
	toRoot(t)
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	documents := []string{"README.md", "CONTRIBUTING.md"}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md", "sim/*.md"} {
		pages, err := filepath.Glob(pattern)
		if err != nil || len(pages) == 0 {
			t.Fatalf("%s: no pages, %v", pattern, err)
		}
		documents = append(documents, pages...)
	}
	named := regexp.MustCompile("(?m)(?:`|^ *)make ([a-z-]+)(?: (PAGE|HUNT)=([a-z-]+))?")
	for _, file := range documents {
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
