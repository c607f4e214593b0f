package swarm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/sim"
)

// Name is the name of the failure's file: WHAT-SEED.yaml.
func (f *Failure) Name() string { return fmt.Sprintf("%s-%d.yaml", f.What, f.Seed) }

// Text is the scenario as a file, with what failed in comments.
func (f *Failure) Text() string {
	why := strings.Join(strings.Fields(f.Why), " ") // of one line
	if r := []rune(why); len(r) > 200 {
		why = string(r[:200]) + "…"
	}
	return fmt.Sprintf("# Broken: %s\n# tiersim run %s --seed %d\n%s", why, f.Name(), f.Seed, f.Scenario)
}

// Write writes the failure's file into a directory that is there, and returns its name.
func (f *Failure) Write(directory string) (string, error) {
	name := filepath.Join(directory, f.Name())
	return name, os.WriteFile(name, []byte(f.Text()), 0o644)
}

var fileName = regexp.MustCompile(`-([0-9]+)\.yaml$`)

// Replay runs the file of a failure as it failed, and says what it breaks; "" when nothing is broken any more.
func Replay(name string) (why string, err error) {
	m := fileName.FindStringSubmatch(name)
	if m == nil {
		return "", fmt.Errorf("swarm: the file's name is %q: must end in -SEED.yaml", name)
	}
	seed, err := strconv.ParseUint(m[1], 10, 64)
	if err != nil {
		return "", fmt.Errorf("swarm: the seed of %q is %q: must be a number of 64 bits", name, m[1])
	}
	s, err := sim.Load(name)
	if err != nil {
		return "", err
	}
	_, b, err := runner{seed}.run(s)
	return b.why, err
}
