package report

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Document returns the path of the page that quotes results, and the page with these results in it.
// It is found from the directory docs.
func (r *Results) Document(docs string) (path, text string, err error) {
	claims, err := r.Claims()
	if err != nil {
		return "", "", err
	}
	path = filepath.Join(docs, "internals", "performance.md")
	before, err := os.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	if text, err = replace(string(before), claims+"\n"+r.Tables()); err != nil {
		return "", "", fmt.Errorf("%s: %w", path, err)
	}
	return path, text, nil
}

// replace puts body between the two markers in text, in place of what is there. Nothing outside
// them is touched.
func replace(text, body string) (string, error) {
	before, rest, begins := strings.Cut(text, begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends || strings.Contains(rest, begin) || strings.Contains(after, end) || strings.Contains(before, end) {
		return "", fmt.Errorf("there must be one %s, and one %s after it", begin, end)
	}
	return before + begin + "\n" + body + end + after, nil
}

// The markers, invisible in Markdown.
const (
	begin = "<!-- made by make bench: do not edit -->"
	end   = "<!-- end of what make bench makes -->"
)
