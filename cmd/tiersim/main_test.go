package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// childVariable makes the test binary tiersim.
const childVariable = "TIERSIM_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// tiersim runs the program.
func tiersim(t *testing.T, args ...string) (out, problems string, status int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	var o, p bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &p
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return o.String(), p.String(), cmd.ProcessState.ExitCode()
}

func TestRunInEachMode(t *testing.T) {
	out, problems, status := tiersim(t, "run", "blackhole", "-modes", "local,open,closed", "-seed", "7")
	if status != 0 || problems != "" {
		t.Errorf("status %d, stderr %q", status, problems)
	}
	for _, part := range []string{"fail-local", "fail-open", "fail-closed", "over_admission", "seed 7"} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
	if strings.HasSuffix(out, "PASS\n") {
		t.Error("package testing has the last word")
	}
}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		stdout string
		stderr string
	}{
		{[]string{"list"}, 0, "blackhole", ""},
		{[]string{"help"}, 0, "usage: tiersim", ""},
		{[]string{"run", "blackhole", "-h"}, 0, "", "-seed"},
		{nil, 2, "", "usage: tiersim"},
		{[]string{"dance"}, 2, "", `"dance" is no command`},
		{[]string{"run"}, 2, "", "tiersim list shows them"},
		{[]string{"run", "nothing"}, 2, "", `"nothing"`},
		{[]string{"run", "steady", "more"}, 2, "", `"more" is too much`},
		{[]string{"run", "steady", "-modes", "local,lucky"}, 2, "", "lucky"},
		{[]string{"run", "steady", "-engine", "steam"}, 2, "", `Options.Engine is "steam"`},
		{[]string{"run", "steady", "-set", "fleet.n=0"}, 2, "", "fleet.n"},
		{[]string{"run", "steady", "-set", "redis_calls"}, 2, "", "PATH=VALUE"},
		{[]string{"run", "blackhole", "-set", "fleet.mode=open"}, 1, "FAIL", ""},
	} {
		out, problems, status := tiersim(t, c.args...)
		if status != c.status || !strings.Contains(out, c.stdout) || !strings.Contains(problems, c.stderr) {
			t.Errorf("tiersim %q: status %d, stdout %q, stderr %q", c.args, status, out, problems)
		}
	}
}
