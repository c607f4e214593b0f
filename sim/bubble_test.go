package sim

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// childVariable makes the test binary an ordinary program.
const childVariable = "SIM_TEST_CHILD"

// hourLong is that program: an hour in a bubble, and then the status that it was given.
func hourLong() {
	Main(func(t *testing.T) int {
		start := time.Now()
		synctest.Test(t, func(*testing.T) { time.Sleep(time.Hour) })
		if time.Since(start) > time.Minute {
			return 9
		}
		os.Stdout.WriteString("slept\n")
		if len(os.Args) > 1 {
			return 8 // package testing was shown the flags
		}
		if os.Getenv(childVariable) == "fail" {
			return 1
		}
		return 0
	})
}

func TestMainRunsBubbles(t *testing.T) {
	for _, c := range []struct {
		value  string
		status int
	}{{"pass", 0}, {"fail", 1}} {
		cmd := exec.Command(os.Args[0], "-unknown")
		cmd.Env = append(os.Environ(), childVariable+"="+c.value)
		out, err := cmd.Output()
		status := 0
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			status = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if status != c.status || strings.TrimSpace(string(out)) != "slept" {
			t.Errorf("%s: status %d, output %q", c.value, status, out)
		}
	}
}
