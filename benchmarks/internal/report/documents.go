package report

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Documents returns the documents that quote results, by path, with these results in them. They are
// found from the directory docs.
func (r *Results) Documents(docs string) (map[string]string, error) {
	claims, err := r.Claims()
	if err != nil {
		return nil, err
	}
	documents := map[string]string{}
	for name, body := range map[string]string{"internals/performance.md": r.Tables(), "peers.md": claims} {
		path := filepath.Join(docs, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if documents[path], err = replace(string(text), body); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return documents, nil
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
