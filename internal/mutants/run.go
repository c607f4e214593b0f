package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/overlay"
)

const (
	// testTime is how long a run of tests may take: all of them take seconds, and a mistake may keep one for ever.
	testTime = 60 * time.Second

	// killTime is how much longer a test binary lives that does not end itself by then.
	killTime = 15 * time.Second

	// script is the file that Redis runs, and scriptTest the test that a changed copy of it works at all.
	script     = "lua/token_bucket.lua"
	scriptTest = "^TestScriptAnswers$"

	// scriptVariable names the copy to scriptTest.
	scriptVariable = "MUTANTS_SCRIPT"

	self = "internal/mutants"
)

// runner tries mutants on one module.
type runner struct {
	root  string // of the module
	tmp   string
	bins  once[string]  // test binaries without a mistake
	sound once[verdict] // of tests without a mistake
}

// once is a map whose values are worked out at their first use.
type once[V any] struct {
	mu sync.Mutex
	of map[string]func() (V, error)
}

func (o *once[V]) get(key string, make func() (V, error)) (V, error) {
	o.mu.Lock()
	if o.of == nil {
		o.of = map[string]func() (V, error){}
	}
	f := o.of[key]
	if f == nil {
		f = sync.OnceValues(make)
		o.of[key] = f
	}
	o.mu.Unlock()
	return f()
}

// result is what became of a mutant.
type result struct {
	mutant
	verdicts []verdict // of its tests, as far as they were run
	err      error     // why they say nothing
}

// caught reports whether every test noticed.
func (r *result) caught() bool {
	if r.err != nil || len(r.verdicts) < len(r.tests) {
		return false
	}
	for _, v := range r.verdicts {
		if !r.noticed(v) {
			return false
		}
	}
	return true
}

// noticed reports whether a verdict is one that the entry accepts.
func (m *mutant) noticed(v verdict) bool { return v.way == fails || slices.Contains(m.counts, v.way) }

// try makes the mistake and runs its tests. Each of them must notice.
func (r *runner) try(ctx context.Context, m mutant) result {
	verdicts, err := r.verdicts(ctx, m)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return result{mutant: m, verdicts: verdicts, err: err}
}

// verdicts runs the mutant's tests, up to the first that says nothing.
func (r *runner) verdicts(ctx context.Context, m mutant) (all []verdict, err error) {
	dir, list, err := r.make(ctx, m)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var bins once[string]
	for _, t := range m.tests {
		if err := r.soundWithout(ctx, t); err != nil {
			return all, err
		}
		bin, err := bins.get(t.binary(), func() (string, error) { return r.build(ctx, dir, t, list) })
		if err != nil {
			return all, err
		}
		v := judge(r.run(ctx, bin, t))
		all = append(all, v)
		if v.way != passes && !m.noticed(v) {
			return all, fmt.Errorf("%v: no assertion but %s: %s", t, v.way, v.why)
		}
	}
	return all, nil
}

// make makes the mistake, in a directory that the caller removes: list is what go build -overlay wants to read.
func (r *runner) make(ctx context.Context, m mutant) (dir, list string, err error) {
	changed, err := overlay.Apply(m.edits, r.read)
	if err != nil {
		return "", "", err
	}
	if dir, err = os.MkdirTemp(r.tmp, "mutant"); err != nil {
		return "", "", err
	}
	list, copies, err := overlay.Write(r.root, dir, changed)
	if copied := copies[script]; err == nil && copied != "" {
		err = r.answers(ctx, copied)
	}
	if err != nil {
		return "", "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, list, nil
}

func (r *runner) read(file string) (string, error) {
	b, err := os.ReadFile(filepath.Join(r.root, filepath.FromSlash(file)))
	return string(b), err
}

// answers checks that a changed script compiles and answers: one that only stumbles would be caught by everything.
func (r *runner) answers(ctx context.Context, copied string) error {
	t := test{dir: self, run: scriptTest}
	bin, err := r.bins.get(t.binary(), func() (string, error) { return r.build(ctx, r.tmp, t, "") })
	if err != nil {
		return err
	}
	out, exit, killed := r.run(ctx, bin, t, scriptVariable+"="+copied)
	if judge(out, exit, killed).way != passes {
		return fmt.Errorf("the changed script does not answer: %s", strings.TrimSpace(out))
	}
	return nil
}

// soundWithout checks that a test runs and passes without the mistake: otherwise it would notice anything.
func (r *runner) soundWithout(ctx context.Context, t test) error {
	v, err := r.sound.get(t.String()+" "+strings.Join(t.extra, " "), func() (verdict, error) {
		bin, err := r.bins.get(t.binary(), func() (string, error) { return r.build(ctx, r.tmp, t, "") })
		if err != nil {
			return verdict{}, err
		}
		verbose := t
		verbose.args = append([]string{"-v"}, t.args...)
		out, exit, killed := r.run(ctx, bin, verbose)
		v := sound(out, exit, killed)
		if v.way != passes {
			v.why += "\n" + out
		}
		return v, nil
	})
	if err == nil && v.way != passes {
		err = fmt.Errorf("%v does not pass without the mistake: %s %s %s", t, v.way, v.test, v.why)
	}
	return err
}

// binary names what t needs of its package: tests with the same name run in the same binary.
func (t test) binary() string {
	name := strings.ReplaceAll(t.dir, "/", "_")
	if t.race() {
		name += "-race"
	}
	return name + ".test"
}

// packageLine is what the compiler's messages of a package begin with.
var packageLine = regexp.MustCompile(`(?m)^# .*\n`)

// build compiles the tests of a package, without go vet: what vet would say of a mistake is not what is asked.
func (r *runner) build(ctx context.Context, dir string, t test, list string) (string, error) {
	bin := filepath.Join(dir, t.binary())
	args := []string{"test", "-c", "-o", bin, "-ldflags=-s -w"} // without what a debugger wants: linking is most of it
	if list != "" {
		args = append(args, "-overlay", list)
	}
	if t.race() {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+t.dir)...)
	cmd.Dir = r.root
	out, err := cmd.CombinedOutput()
	if err == nil {
		_, err = os.Stat(bin) // go test -c is content with a package without tests
	}
	if err != nil {
		return "", fmt.Errorf("does not compile: %s%w", packageLine.ReplaceAll(out, nil), err)
	}
	return bin, nil
}

// run runs a test binary in its package's directory, as go test does.
func (r *runner) run(ctx context.Context, bin string, t test, env ...string) (out string, exit int, killed bool) {
	limit := testTime
	args := []string{"-test.paniconexit0", "-test.run=" + t.run}
	for _, a := range t.args {
		if text, ok := strings.CutPrefix(a, "-timeout="); ok {
			limit, _ = time.ParseDuration(text) // checked when it was read
		} else if a != "-race" {
			args = append(args, "-test."+strings.TrimPrefix(a, "-"))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit+killTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, append(append(args, "-test.timeout="+limit.String()), t.extra...)...)
	cmd.Dir = filepath.Join(r.root, filepath.FromSlash(t.dir))
	// rapid would leave what failed in the source, and make it ever shorter for half a minute.
	cmd.Env = append(os.Environ(), append(env, "RAPID_NOFAILFILE=1", "RAPID_SHRINKTIME=1s")...)
	cmd.WaitDelay = time.Second // for what it has started
	var buffer bytes.Buffer
	cmd.Stdout, cmd.Stderr = &buffer, &buffer
	err := cmd.Run()
	var status *exec.ExitError
	if errors.As(err, &status) {
		exit = status.ExitCode()
	} else if err != nil {
		exit = -1
		fmt.Fprintln(&buffer, err)
	}
	return buffer.String(), exit, ctx.Err() != nil
}
