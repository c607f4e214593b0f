package rls_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
)

// A large file says the same whether it is read in parts or as a whole: the same rules, the same
// mistakes and warnings, each with its place. What cannot be divided is read as a whole.
func TestPartsSayWhatTheFileSays(t *testing.T) {
	fill := func(indent string, from, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%s- key: path # %d\n%s  value: /api/%d\n%s  rate_limit:\n\n%s    unit: minute\n%s    requests_per_unit: 100\n",
				indent, i, indent, from+i, indent, indent, indent)
		}
		return b.String()
	}
	const rules, head = 1500, "domain: d\ndescriptors:\n"
	all, half := fill("  ", 0, rules), rules/2
	flow := "  # a comment\n  - {key: agent, value: x,\n    descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 3}}]}\n"
	limit := "{unit: day, requests_per_unit: 3}"
	for name, c := range map[string]struct {
		text    string
		divided bool
	}{
		"a domain first": {head + all + flow, true},
		"a domain last":  {"descriptors:\n" + all + "domain: d\ntiered: {together: true}\n", true},
		"no indent":      {head + fill("", 0, rules), true},
		"after a head":   {"# c\n---\n" + head + all, true},
		"crlf":           {strings.ReplaceAll(head+all, "\n", "\r\n"), true},
		"no domain":      {"descriptors:\n" + all, true},
		"mistakes": {
			head + fill("  ", 0, half) + "  - {key: a, rate_limit: {unit: x}}\n" + fill("  ", half-10, half) + "oh: no\n", true,
		},
		"warnings":        {head + "  - {key: path, value: '/api/*'}\n" + all + "  - {key: path, value: '/api/a*'}\n", true},
		"a long text":     {head + "  - key: |\n" + strings.Repeat("      - a\n", 20_000) + "    rate_limit: " + limit + "\n", true},
		"an anchor":       {head + "  - {key: a, rate_limit: &l " + limit + "}\n" + all + "  - {key: b, rate_limit: *l}\n", false},
		"an anchor above": {"domain: &d d\ndescriptors:\n" + all + "  - {key: *d}\n", false},
		"no YAML":         {head + fill("  ", 0, half) + "  - {key: [}\n" + fill("  ", half, half), false},
		"a quoted text":   {head + "  - key: \"a\n" + strings.Repeat("  - a\n", 40_000) + "   \"\n", false},
		"twice":           {head + fill("  ", 0, half) + "descriptors:\n" + fill("  ", half, half), false},
		"two documents":   {head + all + "---\ndomain: e\n", false},
		"empty documents": {head + all + "---\n", false},
		"one line":        {"{domain: d, descriptors: [" + strings.Repeat("{key: a, value: b},", 10_000) + "]}", false},
		"a mapping":       {head + strings.Repeat("  a: b\n", 30_000), false},
		"small":           {head + fill("  ", 0, 10), false},
	} {
		tell := func(c *rls.Config, problems []error) (said []string, config string) {
			for _, err := range problems {
				said = append(said, err.Error())
			}
			slices.Sort(said) // a mistake after the descriptors comes before theirs, in parts
			return append(said, c.Warnings()...), c.String()
		}
		divided, is, problems := rls.ReadFile([]byte(c.text), true)
		said, config := tell(is, problems)
		_, is, problems = rls.ReadFile([]byte(c.text), false)
		want, wantConfig := tell(is, problems)
		if divided != c.divided || !slices.Equal(said, want) || config != wantConfig {
			t.Errorf("%s: divided %t, want %t, %d rules, want %d; said %.300q, want %.300q", name, divided, c.divided,
				strings.Count(config, "\n"), strings.Count(wantConfig, "\n"), said, want)
		}
	}
	if n := rls.LargestPart([]byte(head + all)); n > 65<<10 || n == 0 {
		t.Errorf("a part has %d bytes", n)
	}
}
