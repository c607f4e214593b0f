package report

import (
	"fmt"
	"strings"
)

// Replace puts body between the two markers in text, in place of what is there. Nothing outside them is touched.
func Replace(text, body string) (string, error) {
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
