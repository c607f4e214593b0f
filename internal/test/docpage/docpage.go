// Package docpage writes what a program measured into a page of the documentation, between two
// marker comments, so that everything around it stays as it is and every figure has a command that
// makes it again.
package docpage

import (
	"fmt"
	"os"
	"strings"
)

// Replace puts body between the markers of a section of a page.
func Replace(page, name, body string) (string, error) {
	begin, end := "<!-- "+name+": begin -->\n", "<!-- "+name+": end -->"
	before, rest, found := strings.Cut(page, begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended || strings.Contains(after, begin) {
		return "", fmt.Errorf("the page has no one place between %q and %q", strings.TrimSpace(begin), end)
	}
	return before + begin + "\n" + strings.TrimSpace(body) + "\n\n" + end + after, nil
}

// Write is Replace on a file.
func Write(file, name, body string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text, err := Replace(string(page), name, body)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

// Table renders rows, the first of which is the heading.
func Table(rows [][]string) string {
	var b strings.Builder
	for i, row := range rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
		}
	}
	return b.String()
}
