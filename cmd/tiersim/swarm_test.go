package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A swarm says what it was about, and that all promises were kept; the same seeds are the same swarm.
func TestSwarm(t *testing.T) {
	out, problems, status := run(t, "swarm", "--seeds", "4", "--seed", "5")
	problems = regexp.MustCompile(`tiersim: swarming: \d+ %\n`).ReplaceAllString(problems, "") // on a busy machine
	if status != passed || problems != "" || !strings.HasSuffix(out, "4 of 4 seeds kept all promises\n") ||
		!strings.Contains(out, "script_sent 4") {
		t.Fatalf("status %d, %s\n%s", status, problems, out)
	}
	if again, _, _ := run(t, "swarm", "--seeds", "4", "--seed", "5"); again != out {
		t.Errorf("another swarm:\n%s\n%s", out, again)
	}
}

// On a user's scenario only the faults are drawn.
func TestSwarmOnScenario(t *testing.T) {
	file := filepath.Join(t.TempDir(), "own.yaml")
	if err := os.WriteFile(file, []byte(short), 0o600); err != nil {
		t.Fatal(err)
	}
	out, problems, status := run(t, "swarm", file, "--seeds", "2", "--set", "fleet.mode=closed")
	if status != passed || !strings.Contains(out, "2 of 2 seeds") {
		t.Errorf("status %d, %s\n%s", status, problems, out)
	}
}

func TestSwarmRefuses(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--seeds 0", "--seeds is 0: must be 1 to 1000000"},
		{"--seeds 1000001", "--seeds is 1000001: must be 1 to 1000000"},
		{"--seed 0", "--seed is 0: must be 1 or more"},
		{"--seeds 1 --set fleet.n=3", "--set is given without a scenario: must be left out, there is nothing to change"},
		{"--seeds 1 --write nowhere", `--write is "nowhere": must be a directory`},
		{"nobody", `scenario is "nobody": must be one of`},
	} {
		out, problems, status := run(t, append([]string{"swarm"}, strings.Fields(c.args)...)...)
		if status != notRunnable || out != "" || !strings.Contains(problems, c.want) {
			t.Errorf("%s: status %d, %q, %q", c.args, status, problems, out)
		}
	}
}
