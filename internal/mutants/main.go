package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

func main() {
	only := flag.String("only", "", "try only those whose name, theme or rules match this `regexp`")
	jobs := flag.Int("jobs", 2, "try so many at once")
	with := flag.String("with", "", "run `tests` instead of those of the entries: \"local TestX -short\"")
	page := flag.String("scenarios", "", "look for a scenario of the simulator that shows each mistake, and write the table into `PAGE`; - writes none")
	list := flag.Bool("list", false, "say what there is, and try nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *only, *with, *page, *jobs, *list); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, only, with, page string, jobs int, list bool) error {
	filter, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	all, rules, err := load()
	if err != nil {
		return err
	}
	var some []mutant
	for _, m := range all {
		if with != "" {
			t, err := parseTest(with)
			if err != nil {
				return err
			}
			m.tests = []test{t}
		}
		if filter.MatchString(m.theme + " " + m.name + " " + strings.Join(m.rules, " ")) {
			some = append(some, m)
		}
	}
	if len(some) == 0 {
		return fmt.Errorf("none matches %q", only)
	}
	if list {
		describe(some, rules)
		return nil
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	r := &runner{root: root, tmp: tmp}
	if page != "" {
		return lookAll(ctx, r, some, all, max(jobs, 1), page)
	}
	return tryAll(ctx, r, some, max(jobs, 1))
}

// describe prints mutants with the rules that they bend.
func describe(mutants []mutant, rules map[string]string) {
	for _, m := range mutants {
		fmt.Printf("%s (%s)\n", m.name, m.at)
		for _, r := range m.rules {
			fmt.Printf("    %s: %s\n", r, rules[r])
		}
		for _, t := range m.tests {
			fmt.Printf("    must fail: %v\n", t)
		}
	}
	fmt.Printf("%d mutants\n", len(mutants))
}

// moduleRoot is where the go.mod of the current directory is.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	file := strings.TrimSpace(string(out))
	if filepath.Base(file) != "go.mod" {
		return "", errors.New("not in a module")
	}
	return filepath.Dir(file), nil
}

// tryAll tries mutants, so many at once, and prints the table.
func tryAll(ctx context.Context, r *runner, mutants []mutant, jobs int) error {
	t := newTable(os.Stdout, mutants)
	each(mutants, jobs, func(m mutant) result { return r.try(ctx, m) }, func(i int, res result) {
		if res.err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", mutants[i].at, res.err)
		}
		t.add(i, res)
	})
	fmt.Printf("%d/%d caught\n", t.caught, len(mutants))
	if t.caught < len(mutants) {
		return fmt.Errorf("%d not caught: the tests are not good enough, or the entries are wrong", len(mutants)-t.caught)
	}
	return nil
}

// each does something with all mutants, so many at once, and tells of what came of each, one at a time.
func each[R any](mutants []mutant, jobs int, do func(mutant) R, done func(i int, r R)) {
	var mu sync.Mutex
	var workers sync.WaitGroup
	next := make(chan int)
	for range min(jobs, len(mutants)) {
		workers.Go(func() {
			for i := range next {
				begin := time.Now()
				r := do(mutants[i])
				mu.Lock()
				fmt.Fprintf(os.Stderr, "%d/%d %s, %.0f s\n", i+1, len(mutants), mutants[i].name, time.Since(begin).Seconds())
				done(i, r)
				mu.Unlock()
			}
		})
	}
	for i := range mutants {
		next <- i
	}
	close(next)
	workers.Wait()
}
