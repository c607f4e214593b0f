package swarm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/mutants"
	"github.com/tiered-limiter/tiered-limiter/sim"
)

// A known mistake in the limiter, that a debt stays when Redis has accepted it, breaks a promise; the scenario is
// shrunk to a few lines, and its file is red with the mistake and green without it.
func TestKnownMistake(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	const seed, fault = "3", "flap"
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	changed, err := mutants.Apply([]mutants.Edit{{
		File: "local/debt.go", At: "this test", Old: []string{"d.admitted -= c.Debt"}, New: nil,
	}}, func(file string) (string, error) {
		b, err := os.ReadFile(filepath.Join(root, file))
		return string(b), err
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	list, _, err := mutants.Write(root, dir, changed)
	if err != nil {
		t.Fatal(err)
	}
	wrong, found := filepath.Join(dir, "tiersim"), filepath.Join(dir, "found")
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", list, "-o", wrong, "./cmd/tiersim")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Mkdir(found, 0o700); err != nil {
		t.Fatal(err)
	}
	fails := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), wrong, args...)
		out, _ := cmd.CombinedOutput()
		if status := cmd.ProcessState.ExitCode(); status != 1 {
			t.Fatalf("tiersim %s: status %d\n%s", strings.Join(args, " "), status, out)
		}
		return string(out)
	}
	out := fails("swarm", "--seed", seed, "--seeds", "1", "--write", found)
	files, err := filepath.Glob(filepath.Join(found, "*-"+seed+".yaml"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v %v\n%s", files, err, out)
	}
	s, err := sim.Load(files[0])
	if err != nil {
		t.Fatal(err)
	}
	// Of the two processes that are drawn both may stay: a shorter fault was tried first, and one alone does not
	// notice that.
	if len(s.Limits) != 1 || len(s.Traffic) != 1 || s.Fleet.N > 2 || len(s.Faults) != 1 || s.Faults[0].Kind != fault {
		t.Errorf("it could be smaller:\n%v", s)
	}
	fails("run", files[0], "--seed", seed)
	if why, err := Replay(files[0]); why != "" || err != nil {
		t.Errorf("without the mistake: %s %v", why, err)
	}
}
