package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/tiered-limiter/tiered-limiter/internal/overlay"
	"github.com/tiered-limiter/tiered-limiter/internal/section"
)

// moduleRoot is where the go.mod of the current directory is.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	file := strings.TrimSpace(string(out))
	if err != nil || filepath.Base(file) != "go.mod" {
		return "", errors.Join(errors.New("not in a module"), err)
	}
	return filepath.Dir(file), nil
}

// runner runs the loads on one module.
type runner struct {
	root, tmp string

	mu      sync.Mutex
	shipped readings // of all loads, once they are known
}

// readings are what a run printed: figure by "load|figure".
type readings map[string]float64

// asIs runs all loads on the source as it is, once.
func (r *runner) asIs(ctx context.Context) (readings, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shipped == nil {
		got, err := r.test(ctx, "^TestSizing$")
		if err != nil {
			return nil, err
		}
		r.shipped = got
	}
	return r.shipped, nil
}

// try runs the loads that c is judged by on a copy of the source with one of its values.
func (r *runner) try(ctx context.Context, c constant, v value) (readings, error) {
	if v.line == "" {
		return r.asIs(ctx)
	}
	dir, err := os.MkdirTemp(r.tmp, "value")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	changed, err := overlay.Apply([]overlay.Edit{c.edit(v)}, r.read)
	if err != nil {
		return nil, err
	}
	list, _, err := overlay.Write(r.root, dir, changed)
	if err != nil {
		return nil, err
	}
	return r.test(ctx, c.loads(), "-overlay="+list)
}

// test runs loads and reads what they print.
func (r *runner) test(ctx context.Context, loads string, args ...string) (readings, error) {
	all := append([]string{"test", "-count=1", "-v", "-vet=off", "-timeout=5m", "-run=" + loads}, args...)
	cmd := exec.CommandContext(ctx, "go", append(all, "./tiered", "-args", "-sizing")...)
	cmd.Dir = r.root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("go %v: %w\n%s", all, err, out)
	}
	return parse(string(out)), nil
}

func (r *runner) read(file string) (string, error) {
	b, err := os.ReadFile(filepath.Join(r.root, filepath.FromSlash(file)))
	return string(b), err
}

// parse reads lines of "load<TAB>figure<TAB>value".
func parse(out string) readings {
	all := readings{}
	for line := range strings.Lines(out) {
		if f := strings.Split(strings.TrimSpace(line), "\t"); len(f) == 3 {
			if x, err := strconv.ParseFloat(f[2], 64); err == nil {
				all[f[0]+"|"+f[1]] = x
			}
		}
	}
	return all
}

// loads is the regexp of the loads that c is judged by, as after go test -run.
func (c *constant) loads() string {
	seen, names := map[string]bool{}, []string{}
	for _, s := range c.see {
		load, _, _ := strings.Cut(s, "|")
		if !seen[load] {
			seen[load] = true
			names = append(names, regexp.QuoteMeta(strings.ReplaceAll(load, " ", "_")))
		}
	}
	return "^TestSizing$/^(" + strings.Join(names, "|") + ")$"
}

func (c *constant) edit(v value) overlay.Edit {
	return overlay.Edit{File: c.file, At: c.name, Old: []string{c.line}, New: []string{v.line}}
}

// row is the line of c's table for a value.
func (c *constant) row(v value, got readings, err error) ([]string, error) {
	row := []string{v.label}
	for _, s := range c.see {
		x, ok := got[s]
		if !ok && err == nil {
			err = fmt.Errorf("%s %s: no load printed %q", c.name, v.label, s)
		}
		row = append(row, short(x))
	}
	return row, err
}

// tables tries all values of some constants, so many at once, and makes a table of each constant.
func tables(ctx context.Context, r *runner, some []constant, jobs int) (string, error) {
	type slot struct {
		row []string
		err error
	}
	results := make([][]slot, len(some))
	slots := make(chan struct{}, jobs)
	var all sync.WaitGroup
	for i, c := range some {
		results[i] = make([]slot, len(c.values))
		for j, v := range c.values {
			all.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				got, err := r.try(ctx, c, v)
				row, err := c.row(v, got, err)
				results[i][j] = slot{row, err}
				fmt.Fprintln(os.Stderr, c.name+":", row, err)
			})
		}
	}
	all.Wait()
	var b strings.Builder
	for i, c := range some {
		head := []string{c.name}
		for _, s := range c.see {
			head = append(head, strings.Replace(s, "|", ": ", 1))
		}
		rows := [][]string{head}
		for j := range c.values {
			if err := results[i][j].err; err != nil {
				return "", err
			}
			rows = append(rows, results[i][j].row)
		}
		fmt.Fprintf(&b, "%s\n%s\n", section.Table(rows), c.why+"\n")
	}
	return b.String(), nil
}

// short has three digits more than the seeds differ in.
func short(x float64) string {
	if math.Abs(x) >= 1000 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 4, 64)
}
