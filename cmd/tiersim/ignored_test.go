package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A value of a flag that cannot have an effect is refused, and the error names the flag.
func TestNoFlagIsIgnored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(path, []byte("version: 1\npolicies:\n  - name: a\n    limit: 100/s\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"check " + path + " --set fleet.n=3": `--set is "fleet.n=3": must be left out with a file of policies`,
		"diff a b --tolerance NaN":           "--tolerance is NaN: must be 0 to 1",
		"diff a b --tolerance -1":            "--tolerance is -1: must be 0 to 1",
	} {
		if out, problems, status := run(t, strings.Fields(line)...); status != notRunnable || out != "" || !strings.Contains(problems, want) {
			t.Errorf("%s: %d, %q, %q: want %q", line, status, out, problems, want)
		}
	}
}
