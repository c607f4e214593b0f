// Command ratios runs every test that measures a claim about speed, and prints the claims, one line each: name, value,
// bound and verdict (ok or MISS), separated by tabs.
//
// It is run in the directory of the benchmarks module. Lines go to the standard output as they come, and nothing else does;
// what the tests say besides goes to the standard error when one fails for another reason. It ends with 1 on a MISS, on a
// test that fails, and when a module has no line.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// modules are the directories of those that make claims. Only one process at a time measures.
var modules = []string{".", ".."}

func main() {
	failed := false
	for _, dir := range modules {
		var said bytes.Buffer
		count, err := measure(dir, os.Stdout, &said)
		misses := count.misses > 0
		switch {
		case err != nil && !misses:
			fmt.Fprintf(os.Stderr, "%sratios: the tests in %s: %v\n", said.Bytes(), dir, err)
		case count.lines == 0:
			fmt.Fprintf(os.Stderr, "ratios: no line comes from the tests in %s\n", dir)
		}
		// A test that fails beside one that misses is told by its own words.
		if misses && count.failures > count.misses {
			_, _ = os.Stderr.Write(said.Bytes())
		}
		failed = failed || err != nil || misses || count.lines == 0
	}
	if failed {
		os.Exit(1)
	}
}

// measure runs the tests of a module, writes their lines to out as they come and everything to said.
func measure(dir string, out, said io.Writer) (counts, error) {
	cmd := exec.Command("go", "test", "-count=1", "-p=1", "-timeout=10m", "-v", "-run=^TestRatios", "./...")
	cmd.Dir = dir
	f := &filter{lines: out}
	cmd.Stdout, cmd.Stderr = io.MultiWriter(said, f), said
	err := cmd.Run()
	f.flush()
	return f.counts, err
}
