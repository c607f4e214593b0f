package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim"
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

func TestRunOutage(t *testing.T) {
	out, problems, status := tiersim(t, "run", "outage",
		"--processes", "3", "--rate", "200", "--users", "10", "--from", "2s", "--to", "3s", "--length", "4s")
	if status != 0 || problems != "" {
		t.Errorf("status %d, stderr %q", status, problems)
	}
	for _, part := range []string{
		"before: 0 s to 2 s", "during: 2 s to 3 s", "after: 3 s to 4 s", "fail-local", "fail-open", "fail-closed",
		"PASS: every promise was kept",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
	for _, r := range out {
		if r != '\n' && (r < ' ' || r > '~') {
			t.Errorf("%q is not ASCII", r)
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
		{[]string{"list"}, 0, "outage", ""},
		{[]string{"help"}, 0, "usage: tiersim", ""},
		{[]string{"run", "outage", "-h"}, 0, "", "-processes"},
		{nil, 2, "", "usage: tiersim"},
		{[]string{"dance"}, 2, "", `"dance" is no command`},
		{[]string{"run"}, 2, "", "tiersim list shows them"},
		{[]string{"run", "nothing"}, 2, "", `"nothing" is no scenario`},
		{[]string{"run", "outage", "more"}, 2, "", `"more" is too much`},
		{[]string{"run", "outage", "-modes", "local,lucky"}, 2, "", "any of local,open,closed"},
		{[]string{"run", "outage", "-processes", "0"}, 2, "", "Scenario.Processes is 0"},
		{[]string{"run", "outage", "-rate", "-1"}, 2, "", "must be"},
	} {
		out, problems, status := tiersim(t, c.args...)
		if status != c.status || !strings.Contains(out, c.stdout) || !strings.Contains(problems, c.stderr) {
			t.Errorf("tiersim %q: status %d, stdout %q, stderr %q", c.args, status, out, problems)
		}
	}
}

func TestVerdict(t *testing.T) {
	check := func(value float64) *sim.Report {
		return &sim.Report{Modes: []sim.ModeReport{{Checks: []sim.Check{{Value: 0, Most: math.Inf(1)}, {Value: value, Most: 1}}}}}
	}
	if kept, broken := verdict(check(1)), verdict(check(2)); kept != 0 || broken != 1 {
		t.Errorf("status %d for a kept promise, %d for a broken one", kept, broken)
	}
}

func TestFlags(t *testing.T) {
	s, err := parse(strings.Fields("run outage --seed 7 -processes=9 -rate 5 -burst 6 -load 2 -users 3 -floor 4 "+
		"-from 2s -to 3s -length 4s -modes closed,local"), io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	l := s.Hot.Policy.Limit
	if s.Seed != 7 || s.Processes != 9 || l.Tokens != 5 || l.Burst != 6 || s.Hot.Load != 2 || s.Cold.Keys != 3 ||
		s.Options.Processes != 4 || s.From != 2*time.Second || s.To != 3*time.Second || s.Length != 4*time.Second ||
		len(s.Modes) != 2 || s.Modes[0].String() != "fail-local" || s.Modes[1].String() != "fail-closed" {
		t.Errorf("%+v", s)
	}
	if _, err := parse([]string{"run", "outage", "-h"}, io.Discard, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Error(err)
	}
}
