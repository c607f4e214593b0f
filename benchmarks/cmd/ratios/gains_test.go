package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// The README has a place for the table, with the rows of the code, and the table says what was
// measured.
func TestGains(t *testing.T) {
	readme := string(fatal.Get(os.ReadFile("../../../README.md"))(t))
	for _, g := range gains {
		speed := map[bool]string{true: `, [1-9]( ?0)+/s`}[g.speed != ""]
		if !regexp.MustCompile(`\n\| ` + regexp.QuoteMeta(g.who) + speed + ` \| \*\*[^|]*\*\* \| ` + g.peer + ` \|\n`).MatchString(readme) {
			t.Errorf("the README has no row %q", g.who)
		}
	}
	page := filepath.Join(t.TempDir(), "README.md")
	fatal.If(t, os.WriteFile(page, []byte(readme), 0o600))
	values := map[string]float64{gains[0].claim: 0.1836, gains[1].claim: 5.004e-07, gains[1].speed: 23.4e6}
	if err := writeGains(page, values); err == nil || !strings.Contains(err.Error(), gains[2].claim) {
		t.Errorf("without one of the claims: %v", err)
	}
	values[gains[2].claim] = 5e-05
	fatal.If(t, writeGains(page, values))
	text := string(fatal.Get(os.ReadFile(page))(t))
	for _, want := range []string{"| **0.18** | 2 |", ", 20 000 000/s | **1 in 2 000 000** | 1 |", "| **1 in 20 000** | 1 |"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %s in\n%.3000s", want, text)
		}
	}
}
