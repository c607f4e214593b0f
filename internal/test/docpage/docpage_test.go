package docpage_test

import (
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/docpage"
)

func TestReplace(t *testing.T) {
	for _, c := range []struct{ name, page, want string }{
		{"empty", "a\n<!-- x: begin -->\n<!-- x: end -->\nb\n", "a\n<!-- x: begin -->\n\nnew\n\n<!-- x: end -->\nb\n"},
		{"again", "<!-- x: begin -->\n\nold\n\n<!-- x: end -->", "<!-- x: begin -->\n\nnew\n\n<!-- x: end -->"},
		{
			"beside another", "<!-- y: begin -->\n<!-- y: end --><!-- x: begin -->\n<!-- x: end -->",
			"<!-- y: begin -->\n<!-- y: end --><!-- x: begin -->\n\nnew\n\n<!-- x: end -->",
		},
		{name: "no markers", page: "a"},
		{name: "no end", page: "<!-- x: begin -->\n"},
		{name: "twice", page: "<!-- x: begin -->\n<!-- x: end --><!-- x: begin -->\n<!-- x: end -->"},
	} {
		got, err := docpage.Replace(c.page, "x", "new\n")
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

func TestTable(t *testing.T) {
	want := "| a | b |\n|---|---|\n| 1 | 2 |\n"
	if got := docpage.Table([][]string{{"a", "b"}, {"1", "2"}}); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
