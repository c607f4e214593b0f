package tune

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/tiered-limiter/tiered-limiter/sim"
)

const quietVariable = "TIERED_TEST_QUIET"

// A user's test on the Lua engine has no line of go-redis about connections that the scenario refuses, without a
// TestMain; a logger that somebody sets is kept. This is here because the tests of package sim set one.
func TestQuiet(t *testing.T) {
	if how := os.Getenv(quietVariable); how != "" {
		if how == "loud" {
			logging.Enable()
		}
		s := sim.MustLoad("kill-local")
		for path, value := range map[string]string{"run": "20s", "at.1.for": "2s", "fleet.n": "4"} {
			if err := s.Set(path, value); err != nil {
				t.Fatal(err)
			}
		}
		s.Expect = nil
		if _, err := sim.Run(s, &sim.Options{Engine: sim.Lua}); err != nil {
			t.Fatal(err)
		}
		return
	}
	for how, want := range map[string]bool{"quiet": false, "loud": true} {
		c := exec.Command(os.Args[0], "-test.run=^TestQuiet$", "-test.timeout=60s")
		c.Env = append(os.Environ(), quietVariable+"="+how)
		out, err := c.CombinedOutput()
		if got := strings.Contains(string(out), "failed to dial"); err != nil || got != want {
			t.Errorf("%s: %v\n%.2000s", how, err, out)
		}
	}
}
