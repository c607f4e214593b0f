package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
)

// header says on what, of what and with what was measured, in benchfmt's configuration lines. The
// processor's name comes with the results.
func header() (string, error) {
	var problems []error
	said := func(name string, args ...string) string {
		out, err := exec.Command(name, args...).Output()
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
		return strings.TrimSpace(string(out))
	}
	commit := said("git", "rev-parse", "--short=12", "HEAD")
	// What this command writes itself is no change.
	if said("git", "status", "--porcelain", "--", ":/", ":(exclude,top)docs") != "" {
		commit += "+changes"
	}
	redis := strings.TrimPrefix(regexp.MustCompile(`v=\S+`).FindString(said("redis-server", "--version")), "v=")
	if redis == "" {
		problems = append(problems, errors.New("redis-server --version says no version"))
	}
	// Those that go.mod requires for themselves.
	modules := said("go", "list", "-m", "-f", "{{if not (or .Main .Indirect .Replace)}}{{.Path}} {{.Version}}{{end}}", "all")
	return fmt.Sprintf("machine: %s/%s, %d CPUs%s\ncommit: %s\ngo: %s\nredis: %s\nmodules: %s\n",
			runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), load(), commit, runtime.Version(), redis,
			strings.ReplaceAll(modules, "\n", ", ")),
		errors.Join(problems...)
}

// load says how busy the machine was before: other work is in every figure.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	return ", load average " + strings.Fields(string(text))[0]
}
