package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
)

// header says on what, of what and with what was measured, in benchfmt's configuration lines. The processor's name comes
// with the results.
func header() (string, error) {
	commit, err := commit()
	if err != nil {
		return "", err
	}
	redis, err := redisVersion()
	if err != nil {
		return "", err
	}
	modules, err := modules()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("machine: %s/%s, %d CPUs%s\ncommit: %s\ngo: %s\nredis: %s\nmodules: %s\n",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), load(), commit, runtime.Version(), redis, modules), nil
}

// load says how busy the machine was before: other work is in every figure.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	return ", load average " + strings.Fields(string(text))[0]
}

// commit is the revision, marked when anything was changed since but what this command writes itself.
func commit() (string, error) {
	out, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "", fmt.Errorf("git rev-parse: %w", err)
	}
	changed, err := exec.Command("git", "status", "--porcelain", "--", ":/", ":(exclude,top)docs").Output()
	if err != nil {
		return "", fmt.Errorf("git status: %w", err)
	}
	revision := strings.TrimSpace(string(out))
	if len(changed) > 0 {
		revision += "+changes"
	}
	return revision, nil
}

var version = regexp.MustCompile(`v=(\S+)`)

func redisVersion() (string, error) {
	out, err := exec.Command("redis-server", "--version").Output()
	if err != nil {
		return "", fmt.Errorf("redis-server --version: %w", err)
	}
	m := version.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("redis-server --version says %q", out)
	}
	return string(m[1]), nil
}

// modules are those that go.mod requires for themselves.
func modules() (string, error) {
	out, err := exec.Command("go", "mod", "edit", "-json").Output()
	if err != nil {
		return "", fmt.Errorf("go mod edit: %w", err)
	}
	var file struct {
		Replace []struct{ Old struct{ Path string } }
		Require []struct {
			Path, Version string
			Indirect      bool
		}
	}
	if err := json.Unmarshal(out, &file); err != nil {
		return "", err
	}
	var all []string
	for _, m := range file.Require {
		if !m.Indirect && (len(file.Replace) == 0 || m.Path != file.Replace[0].Old.Path) {
			all = append(all, m.Path+" "+m.Version)
		}
	}
	return strings.Join(all, ", "), nil
}
