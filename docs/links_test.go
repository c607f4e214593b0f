package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What the pages link to exists: files, directories, pictures, and headings of pages.
func TestPageLinks(t *testing.T) {
	toRoot(t)
	pages := slices.Concat([]string{"README.md", "CONTRIBUTING.md", "SECURITY.md"}, files(t, "docs/*.md"), files(t, "docs/*/*.md"),
		files(t, "sim/*.md"))
	link := regexp.MustCompile(`\]\(([^)#]*)(?:#([^)]+))?\)`)
	links := 0
	for _, name := range pages {
		page := regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(read(t, name), "") // Go has such brackets too
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
				target = read(t, path)
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
