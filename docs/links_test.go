package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the pages link to exists: files, directories, pictures, and headings of pages. TestReadmeLinks reads the README.
func TestPageLinks(t *testing.T) {
	toRoot(t)
	var pages []string
	for _, pattern := range []string{"CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "docs/*/*.md", "sim/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: no pages, %v", pattern, err)
		}
		pages = append(pages, found...)
	}
	link := regexp.MustCompile(`\]\(([^)#]*)(?:#([^)]+))?\)`)
	links := 0
	for _, name := range pages {
		page := readPage(t, name)
		for _, m := range link.FindAllStringSubmatch(page, -1) {
			file, heading := m[1], m[2]
			if strings.HasPrefix(file, "https://") {
				continue
			}
			links++
			target := page
			if file != "" {
				path := filepath.Join(filepath.Dir(name), file)
				info, err := os.Stat(path)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				if heading == "" || info.IsDir() {
					continue
				}
				target = readPage(t, path)
			}
			if !headings(target)[heading] {
				t.Errorf("%s links to %s, which has no heading #%s", name, file, heading)
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links: the pattern is wrong", links)
	}
}
