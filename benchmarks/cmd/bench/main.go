// Command bench runs all benchmarks, keeps their raw output in docs/bench, and writes what
// docs/internals/performance.md says about speed out of it. It is run in the directory of the
// benchmarks module.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/tiered-limiter/tiered-limiter/benchmarks/internal/report"
)

// docs is the directory of the page that is written, as seen from the benchmarks module.
const docs = "../docs"

func main() {
	rounds := flag.Int("rounds", 5, "how many times each benchmark is run, all of them once before any again")
	length := flag.Duration("benchtime", 300_000_000, "how long each one measures")
	only := flag.Bool("render", false, "do not measure: write the page from the raw output that is there")
	flag.Parse()
	raw := filepath.Join(docs, "bench", fmt.Sprintf("%s-%s-%dcpu.txt", runtime.GOOS, runtime.GOARCH, runtime.NumCPU()))
	err := error(nil)
	if !*only {
		err = measure(raw, *rounds, length.String())
	}
	if err == nil {
		err = render(raw)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// measure runs the benchmarks. What was kept before stays unless all rounds succeed.
func measure(raw string, rounds int, length string) error {
	head, err := header()
	if err != nil {
		return err
	}
	var all bytes.Buffer
	out := io.MultiWriter(os.Stdout, &all)
	fmt.Fprint(out, head)
	for range rounds {
		cmd := exec.Command("go", "test", "-run=^$", "-bench=.", "-benchtime="+length, "-timeout=1h", ".")
		cmd.Stdout, cmd.Stderr = out, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("the benchmarks failed: %w", err)
		}
	}
	return os.WriteFile(raw, all.Bytes(), 0o644)
}

// render writes the page.
func render(raw string) error {
	results, err := report.ReadFile(raw)
	if err != nil {
		return err
	}
	path, text, err := results.Document(docs)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
