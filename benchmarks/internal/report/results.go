// Package report makes tables out of the raw output of the benchmarks, and writes them between
// markers in documents.
package report

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ratio"
)

// Results are the medians of a run.
type Results struct {
	Config map[string]string // of the file: machine, commit, versions
	loads  []string          // in the order of the file, as are the limiters
	rows   map[string][]string
	values map[cell][]float64
}

// cell is what was measured, several times.
type cell struct{ load, limiter, goroutines, unit string }

// ReadFile reads the raw output of a run.
func ReadFile(path string) (*Results, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Read(f, filepath.Base(path))
}

// Read reads benchfmt. It is strict: a line that looks like a result and is none is an error.
func Read(r io.Reader, name string) (*Results, error) {
	res := &Results{Config: map[string]string{}, rows: map[string][]string{}, values: map[cell][]float64{}}
	in := benchfmt.NewReader(r, name)
	for in.Scan() {
		switch line := in.Result().(type) {
		case *benchfmt.SyntaxError:
			return nil, line
		case *benchfmt.Result:
			if err := res.add(line); err != nil {
				return nil, err
			}
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	if len(res.loads) == 0 {
		return nil, fmt.Errorf("%s: no results", name)
	}
	return res, nil
}

func (r *Results) add(line *benchfmt.Result) error {
	for _, c := range line.Config {
		r.Config[c.Key] = string(c.Value)
	}
	_, parts := line.Name.Parts()
	at := map[string]string{}
	for _, part := range parts {
		if key, value, ok := strings.Cut(strings.TrimPrefix(string(part), "/"), "="); ok {
			at[key] = value
		}
	}
	load, limiter, goroutines := at["load"], at["limiter"], at["goroutines"]
	if load == "" || limiter == "" || goroutines == "" {
		return fmt.Errorf("%s: not a load, a limiter and goroutines", line.Name)
	}
	if !slices.Contains(r.loads, load) {
		r.loads = append(r.loads, load)
	}
	if !slices.Contains(r.rows[load], limiter) {
		r.rows[load] = append(r.rows[load], limiter)
	}
	for _, v := range line.Values {
		k := cell{load, limiter, goroutines, v.Unit}
		r.values[k] = append(r.values[k], v.Value)
	}
	return nil
}

// Median is the median of what was measured, in benchfmt's tidy units: seconds, not nanoseconds.
func (r *Results) Median(load, limiter string, goroutines int, unit string) (x float64, ok bool) {
	xs := r.values[cell{load, limiter, fmt.Sprint(goroutines), unit}]
	if len(xs) == 0 {
		return 0, false
	}
	return ratio.Median(xs), true
}

// most is the largest number of goroutines that a limiter was measured with, 0 for none.
func (r *Results) most(load, limiter string) int {
	for _, n := range []int{16, 2, 1} {
		if _, ok := r.Median(load, limiter, n, wall); ok {
			return n
		}
	}
	return 0
}

// Units, as benchfmt tidies them.
const (
	wall     = "sec/op"
	client   = "client-sec/op"
	server   = "server-sec/op"
	commands = "commands/op"
	allocs   = "allocs/op"
)
