// Command ratios runs every test that measures a claim about speed, and prints the claims, one line
// each: name, value, bound or "no bound", and verdict (ok or MISS), separated by tabs.
//
// It is run in the directory of the benchmarks module. Lines go to the standard output as they
// come, and nothing else does; what the tests of a module say besides goes to the standard error
// when one of them fails. It writes what some of them measured into the README (gains.go). It ends
// with 1 on a MISS, on a test that fails, and when a module has no line.
package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
)

// modules are the directories of those that make claims. Only one process at a time measures.
var modules = []string{".", "..", "../contrib/prometheus", "../contrib/rls"}

func main() {
	failed := false
	values := map[string]float64{}
	for _, dir := range modules {
		s, err := measure(dir)
		if err != nil {
			fmt.Fprintf(os.Stderr, "\n%sratios: the tests in %s: %v\n", s.rest.String(), dir, err)
		}
		if s.claims == 0 {
			fmt.Fprintf(os.Stderr, "ratios: no line comes from the tests in %s\n", dir)
		}
		failed = failed || err != nil || s.misses > 0 || s.claims == 0
		maps.Copy(values, s.values)
	}
	if err := writeGains("../README.md", values); err != nil {
		fmt.Fprintf(os.Stderr, "ratios: the README's table is as it was: %v\n", err)
		failed = true
	}
	if failed {
		os.Exit(1)
	}
}

// measure runs the tests of a module.
func measure(dir string) (*said, error) {
	cmd := exec.Command("go", "test", "-count=1", "-p=1", "-timeout=15m", "-v", "-run=^TestRatios", "./...")
	cmd.Env = append(os.Environ(), "TIERED_TEST_RATIOS=1") // in full
	cmd.Dir = dir
	out, err := cmd.StdoutPipe()
	if err != nil {
		return &said{}, err
	}
	cmd.Stderr = cmd.Stdout // one writer, so that what they say stays in order
	if err := cmd.Start(); err != nil {
		return &said{}, err
	}
	s := filter(out, os.Stdout)
	return s, cmd.Wait()
}
