package misspelled_test

import (
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/misspelled"
)

func TestNearest(t *testing.T) {
	for _, c := range []struct{ word, want string }{
		{"blakhole", "blackhole"},
		{"blackohle", "blackhole"},
		{"BLACKHOLE", "blackhole"},
		{"blckhle", "blackhole"},
		{"blchle", ""},
		{"klil", "kill"},
		{"kiln", "kill"},
		{"bull", ""},
		{"up", "ip"},
		{"x", ""},
		{"", ""},
		{strings.Repeat("x", 1000), ""},
	} {
		if got := misspelled.Meant(c.word, []string{"kill", "blackhole", "ip"}); got != c.want {
			t.Errorf("%.20s: %q, want %q", c.word, got, c.want)
		}
	}
}
