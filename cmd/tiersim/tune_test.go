package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tiered-limiter/tiered-limiter/internal/tune"
)

// The commands of sim/tuning.md ask what the page's figures are the answer to.
func TestServicesAreAsked(t *testing.T) {
	for _, s := range tune.Services() {
		var q question
		c := &cobra.Command{}
		q.flags(c)
		if err := c.ParseFlags(s.Flags); err != nil {
			t.Fatal(err)
		}
		asked, err := q.read()
		if err != nil {
			t.Fatal(err)
		}
		want := s.Question
		if err := want.Check(); err != nil {
			t.Fatal(err)
		}
		if err := asked.Check(); err != nil || !reflect.DeepEqual(asked, want) {
			t.Errorf("%s: %v\nasked %+v\nwant  %+v", s.Name, err, asked, want)
		}
	}
}

func TestTune(t *testing.T) {
	if testing.Short() {
		t.Skip("20 s under the race detector; package tune has short ones")
	}
	quick := strings.Fields("tune --rate 40/s --processes 4 --outage 5s --faults blackhole,none --requests 40")
	out, problems, status := run(t, append(quick, "--over", "1000", "--shortfall", "60%")...)
	if status != passed || !strings.Contains(out, "policy := tiered.Policy{") ||
		strings.Contains(out, "NOT SATISFIED") {
		t.Errorf("status %d, %q, %s", status, problems, out)
	}
	out, _, status = run(t, append(quick, "--over", "0", "--shortfall", "0", "--calls", "0.1/s")...)
	if status != broken || !strings.Contains(out, "NOT SATISFIED: redis_calls <= 0.1/s") {
		t.Errorf("status %d, %s", status, out)
	}
	out, _, status = run(t, append(quick, "--shortfall", "100%", "--over", "1e6", "--json", "-")...)
	if status != passed || !strings.Contains(out, `"advised": {`) {
		t.Errorf("status %d, %s", status, out)
	}
}

func TestTuneErrors(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", `tune has no --rate`},
		{"--rate 5", `--rate is "5": must be tokens per period`},
		{"--rate 5/s --over x", `--over is "x"`},
		{"--rate 5/s --over -1", `--over is "-1"`},
		{"--rate 5/s --shortfall 101%", `--shortfall is "101%"`},
		{"--rate 5/s --calls 0", `--calls is "0"`},
		{"--rate 5/s --calls 5%", `--calls is "5%"`},
		{"--rate 5/s --seed 0", `--seed is "0"`},
		{"--rate 5/s --processes 0", "processes is 0: must be 1 to 1000"},
		{"--rate 5/s --faults fire", `fault is "fire": must be one of blackhole`},
		{"--rate 5/s --shape round", `shape is "round"`},
		{"--rate 5/s more", `tune has arguments ["more"]`},
	} {
		_, problems, status := run(t, append([]string{"tune"}, strings.Fields(c.args)...)...)
		if status != notRunnable || !strings.Contains(problems, c.want) {
			t.Errorf("%s: status %d, %q, want %q", c.args, status, problems, c.want)
		}
	}
}
