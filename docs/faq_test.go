package docs_test

import (
	"regexp"
	"strings"
	"testing"
)

// There are 12 to 15 questions, and each answer has at most four sentences besides its link.
func TestFAQ(t *testing.T) {
	toRoot(t)
	sections := strings.Split(read(t, "docs/faq.md"), "\n## ")[1:]
	if len(sections) < 12 || len(sections) > 15 {
		t.Errorf("%d questions", len(sections))
	}
	for _, section := range sections {
		question, answer, _ := strings.Cut(section, "\n")
		answer = strings.ReplaceAll(strings.TrimSpace(answer), "\n", " ")
		if !strings.HasSuffix(question, "?") || !strings.Contains(answer, "](") {
			t.Errorf("no question, or no link: %s", section)
		}
		answer = regexp.MustCompile(`See [^.]*\[[^\]]*\]\([^)]*\)\.$`).ReplaceAllString(answer, "")
		if n := len(regexp.MustCompile(`[.?](?: |$)`).FindAllString(answer, -1)); n > 4 {
			t.Errorf("%d sentences: %s", n, answer)
		}
	}
}
