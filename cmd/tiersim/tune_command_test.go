package main_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	tiersim "github.com/tiered-limiter/tiered-limiter/cmd/tiersim"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// A run says what it takes; the same seed gives the same; a wish that cannot be had is named.
func TestTuneAnswer(t *testing.T) {
	quick := strings.Fields("tune --rate 20/s --processes 3 --outage 3s")
	out, problems, status := run(t, append(quick, "--over", "0", "--shortfall", "90%")...)
	row := regexp.MustCompile(`(?m)^\* +Fail(\w+)\b.* nothing$`).FindStringSubmatch(out)
	if status != passed || row == nil || row[1] != "Closed" || !strings.Contains(out, "FailMode: tiered.FailClosed") ||
		!strings.Contains(out, tiersim.Rule) || strings.Contains(out, "NO SETTING") {
		t.Errorf("status %d, %q\n%s", status, problems, out)
	}
	if again, _, _ := run(t, append(quick, "--over", "0", "--shortfall", "90%")...); again != out {
		t.Errorf("not the same again:\n%s", again)
	}
	both := append([]string{"tune", "--rate", "20/s and 1300/min burst 30"}, quick[3:]...)
	out, problems, status = run(t, append(both, "--over", "1000", "--calls", "0.5/s")...)
	if status != broken || !strings.Contains(out, "limit of each: 20/s and 1300/min burst 30; ") || !strings.Contains(out, "NO SETTING KEEPS ALL") || strings.Count(out, "\n*") != 1 ||
		len(regexp.MustCompile(`(?m)^[* ] +Fail[A-Z]`).FindAllString(out, -1)) != 10 ||
		!regexp.MustCompile(`(?m)^\* .* calls/s$`).MatchString(out) ||
		!regexp.MustCompile(`(?m)^ +accepted +1000 +20% +0.5/s$`).MatchString(out) {
		t.Errorf("status %d, %q\n%s", status, problems, out)
	}
}

// Standing shares are taken for rarely used keys. They are not tried where they are not possible,
// nor for keys at their limit.
func TestTuneStanding(t *testing.T) {
	for flags, want := range map[string]string{
		"--rate 100/s --burst 200 --keys 12 --demand 0.01": "Standing: 1. / ",
		"--rate 15/s --keys 8 --demand 0.1":                "not tried: tiered: Policy.Standing is 0.125: must be 0",
		"--rate 15/s":                                      "not tried: they are for keys that are asked for less",
	} {
		out, problems, _ := run(t, strings.Fields("tune --processes 4 --outage 3s "+flags)...)
		if !strings.Contains(out, want) {
			t.Errorf("%s: %q\n%s\nwant %s", flags, problems, out, want)
		}
	}
}

// All policies of a file are tuned in one run, each with a verdict in words. Others are named with
// the reason.
func TestTunePolicies(t *testing.T) {
	policies := file(t, "p.yaml", `version: 1
policies:
  - {name: users, limit: 20/s}
  - {name: strict, limit: 30/s burst 10, fail_mode: closed}
  - {name: both, limit: 20/s and 600/min burst 60}
  - {name: log, limit: 10/s, algorithm: sliding log}
  - {name: month, limit: 100/month in UTC, algorithm: fixed window}
  - {name: free, limit: unlimited}
  - {name: huge, limit: 1000000/s}
at_once: [{name: in-flight, places: 5}]
`)
	out, problems, status := run(t, strings.Fields("tune --processes 3 --outage 3s --keys 25 --over 1000 --shortfall 90% --policies "+policies)...)
	for _, want := range []string{
		`(?m)^users +Fail\w+.* nothing$`, `(?m)^strict +Fail\w+.* nothing$`, "(?m)^not tuned: month: --demand must be high enough for 100 requests",
		`(?m)^both +Fail\w+.* nothing$`, `(?m)^log +Fail\w+, Lease: tiered.Lease{Size: tiered.NoLease} .* nothing$`,
		"(?m)^not tuned: free: it is unlimited$", "(?m)^not tuned: in-flight: it has no rate$", "(?m)^not tuned: huge: --rate must be low enough for 60000 requests",
		`(?m)^users: Take fail-local, .*\n  0\.\d\d calls of Redis per request, .*\n  At worst \d+ tokens over .*\n  You gain (no calls, but|calls, and) an outage`,
		`(?m)^strict: Take fail-`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %s (status %d, %q) in\n%s", want, status, problems, out)
		}
	}
	if status != passed {
		t.Errorf("status %d", status)
	}
	windows := file(t, "w.yaml", "version: 1\npolicies: [{name: w, limit: unlimited}]\n")
	for args, want := range map[string]string{
		"--policies " + windows:                  `w.yaml has no policy that can be tuned: policy "w": it is unlimited`,
		"--policies " + policies + " --rate 5/s": "[policies rate] were all set",
		"--burst 5":                              "at least one of the flags in the group [rate policies] is required",
		"--policies none.yaml":                   "none.yaml: no such file",
	} {
		if _, problems, status := run(t, append([]string{"tune"}, strings.Fields(args)...)...); status != notRunnable || !strings.Contains(problems, want) {
			t.Errorf("%s: status %d, %q, want %q", args, status, problems, want)
		}
	}
}

// Each wrong flag is reported with its value and its tiersim.Rule, all at once.
func TestTuneErrors(t *testing.T) {
	for args, want := range map[string]string{
		"--rate 5":                          `--rate is "5": must be tokens per period`,
		"--rate 5/month":                    `--rate is "5/month": must be tokens per period`,
		"--rate 5/s --burst -1":             `--burst is "-1": must be 1 to 2^40 tokens`,
		"--rate 5/s --over x":               `--over is "x": must be tokens, or per cent of the burst`,
		"--rate 5/s --over -1":              `--over is "-1"`,
		"--rate 5/s --over NaN":             `--over is "NaN"`,
		"--rate 5/s --shortfall 101%":       `--shortfall is "101%": must be 0% to 100%`,
		"--rate 5/s --shortfall 0.1":        `--shortfall is "0.1"`,
		"--rate 5/s --calls 0/s":            `--calls is "0/s": must be more than 0 per second`,
		"--rate 5/s --seed 0":               `--seed is "0": must be 1 or more`,
		"--rate 5/s --keys 0 --demand 0":    "--demand is \"0\": must be 0.01 to 100 times the limit\n--keys is \"0\": must be 1 to 1000000",
		"--rate 5/s --processes 0 --rtt 0s": "--processes is \"0\": must be 1 to 1000\n--rtt is \"0s\": must be 1us to 10s",
		"--rate 5/s --cost 6":               `--cost is "6": must be 1 to the burst`,
		"--rate 5/s --cost 2 --max-cost 1":  `--max-cost is "1": must be the cost to the burst`,
		"--rate 5/s --outage 1s":            `--outage is "1s": must be 3s to 10m`,
		"--rate 5/h":                        `--demand is "1.5": must be high enough for 100 requests`,
		"--rate 1000000/s":                  `--rate is "1000000/s": must be low enough for 60000 requests`,
		"--rate 5/s more":                   `unknown command "more" for "tiersim tune"`,
	} {
		_, problems, status := run(t, append([]string{"tune"}, strings.Fields(args)...)...)
		if status != notRunnable || !strings.Contains(problems, want) {
			t.Errorf("%s: status %d, %q, want %q", args, status, problems, want)
		}
	}
}

// The commands of sim/tuning.md are understood, and the answer that it shows has the rule.
func TestTuningPage(t *testing.T) {
	text := fatal.Get(os.ReadFile("../../sim/tuning.md"))(t)
	commands := regexp.MustCompile(`(?m)^go run ./cmd/tiersim tune (.*)$`).FindAllSubmatch(text, -1)
	for _, c := range commands {
		if _, problems, _ := run(t, append([]string{"tune", "--seed", "0"}, strings.Fields(string(c[1]))...)...); problems !=
			"tiersim: --seed is \"0\": must be 1 or more\n" {
			t.Errorf("%s: %s", c[1], problems)
		}
	}
	words := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	if len(commands) < 4 || !strings.Contains(words(string(text)), words(tiersim.Rule)) {
		t.Errorf("%d commands, or no rule: %s", len(commands), tiersim.Rule)
	}
}
