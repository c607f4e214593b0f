package main_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	tiersim "github.com/tiered-limiter/tiered-limiter/cmd/tiersim"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The exit statuses.
const (
	passed      = 0
	broken      = 1
	notRunnable = 2
)

// childVariable makes the test binary tiersim.
const childVariable = "TIERSIM_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		tiersim.Main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// program runs the program in a process of its own.
func program(t *testing.T, args ...string) (out, problems string, status int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childVariable+"=1", "LC_ALL=C")
	var o, p bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &p
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return o.String(), p.String(), cmd.ProcessState.ExitCode()
}

// run runs a command line in this process.
func run(t *testing.T, args ...string) (out, problems string, status int) {
	t.Helper()
	var o, p bytes.Buffer
	status = tiersim.Execute(&o, &p, false, false, args...)
	return o.String(), p.String(), status
}

// An error of the command line shows how to go on.
func TestHowToGoOn(t *testing.T) {
	for line, want := range map[string]string{
		"run":           "tiersim run outage outage-open outage-closed",
		"run outgae":    `scenario is "outgae": did you mean outage?`,
		"runn outage":   "Did you mean this?\n\trun",
		"replay":        "tiersim replay report.json",
		"tune":          "at least one of the flags in the group [rate policies] is required",
		"run --sed 1 x": "unknown flag: --sed\nUsage:\n  tiersim run",
	} {
		_, problems, status := run(t, strings.Fields(line)...)
		if status != notRunnable || !strings.Contains(problems, want) {
			t.Errorf("tiersim %s: %d, %q, want %q", line, status, problems, want)
		}
	}
	if out, _, status := run(t, "--version"); status != passed || !strings.Contains(out, runtime.Version()) {
		t.Errorf("--version: %d %q", status, out)
	}
}

// short is a scenario that takes a moment and keeps what it promises.
const short = `name: short
learn: nothing
limits:
  - {name: api, rate: 50/s, burst: 50}
fleet: {n: 3}
traffic:
  - {shape: poisson, rate: 75/s}
faults:
  - {at: 3s, kind: kill, for: 2s}
run: 8s
warmup: 2s
expect:
  - over_admission <= 150
sometimes: [breaker_open]
sweep:
  fleet.n: [2, 4]
`

// file writes a text into a directory of the test.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// The program as a user has it: a process, its exit status, nothing but the report on a stdout that
// is no terminal.
func TestProgram(t *testing.T) {
	path := file(t, "short.yaml", short)
	out, problems, status := program(t, "run", path, "--seed", "7")
	if status != passed || problems != "" || !strings.Contains(out, "\nPASS  ") ||
		!strings.Contains(out, "seed 7") {
		t.Errorf("status %d, stderr %q, stdout\n%s", status, problems, out)
	}
	if strings.HasSuffix(out, "PASS\n") {
		t.Error("package testing has the last word")
	}
	if _, _, status := program(t, "run", path, "--set", "fleet.mode=open", "--set", "traffic.rate=500/s"); status != broken {
		t.Errorf("status %d for a broken expectation", status)
	}
	if _, problems, status := program(t, "run", "nothing"); status != notRunnable ||
		!strings.HasPrefix(problems, "tiersim: ") {
		t.Errorf("status %d, stderr %q for a scenario that is not there", status, problems)
	}
}

func TestStatus(t *testing.T) {
	path := file(t, "short.yaml", short)
	wrong := file(t, "wrong.yaml", "limits: [{name: api, rate: 1}]\nfleet: {n: 0}\n")
	policies := file(t, "policies.yaml", "version: 1\npolicies: [{name: api, limit: 500/s burst 700, fail_mode: open, max_debt: 900, keys: {vip: blocked}}, {name: free, limit: unlimited}]\n"+
		"http: [{match: /x/, limits: [{policy: api, key: header X-User, cost: 3}]}]\n")
	plans := file(t, "plans.yaml", "version: 1\npolicies: [{name: api, limit: 100/min, plans: {pro: 1000/min}}]\n"+
		"http: [{match: /, limits: [{policy: api, key: header X-User, plan: header X-Plan}], address: hops 1, ranges: {10.0.0.0/8: unlimited}}]\n")
	quotas := file(t, "quotas.yaml", "version: 1\npolicies: [{name: q, limit: 10/month from day 17, algorithm: fixed window, plans: {pro: 20/month from day 17}, "+
		"keys: {ann: 5/month in Asia/Tokyo from day 31}}, {name: trap, limit: 10/30d, algorithm: fixed window}]\n")
	next := func(p tiered.Calendar) (line string) {
		for at, i := time.Now(), 0; i < 3; i++ {
			_, at = p.At(at)
			line += " " + at.Format(time.RFC3339)
		}
		return line + "\n"
	}
	asJSON := file(t, "policies.json", "\ufeff{\n  \"policies\": [{\"name\": \"api\", \"limit\": \"7/s\"}],\n  \"version\": 1\n}\n")
	rulesOnly := file(t, "rules.yaml", "# nothing else\nhttp: []\n")
	other := file(t, "other.yaml", strings.Replace(short, "name: api", "name: users", 1))
	places := file(t, "places.yaml", "version: 1\npolicies: []\nat_once: [{name: in-flight, places: 5}]\n"+
		"http: [{match: /, limits: [{at_once: in-flight, key: header X-User}]}]\n")
	badPlaces := file(t, "bad-places.yaml", "at_once: [{name: in-flight, places: 5}]\n"+
		"version: 1\npolicies: []\nhttp: [{match: /, limits: [{at_once: inflight, key: ip}]}]\n")
	beside := file(t, "beside.yaml", "version: 1\npolicies: [{name: api, limit: 5/s}]\nat_once: [{name: in-flight, places: 5, fail_mode: closed}]\n")
	flight := file(t, "flight.yaml", strings.NewReplacer("fleet:", "at_once: {places: 9}\nfleet:", "75/s", "75/s, runs: 10ms").Replace(short))
	twoPlaces := file(t, "two-places.yaml", "version: 1\npolicies: [{name: api, limit: 60/s}]\nat_once: [{name: in-flight, places: 5}, {name: exports, places: 20}]\n")
	badPolicies := file(t, "bad.yaml", "version: 1\npolicies: [{name: a, limit: 1/x}]\n")
	for _, c := range []struct {
		args   []string
		status int
		stdout string
		stderr string
	}{
		{[]string{"list"}, passed, "\noutage ", ""},
		{[]string{"faults"}, passed, "latency      delay [procs] [jitter] [for]", ""},
		{[]string{"metrics"}, passed, "\nshortfall ", ""},
		{[]string{"check", path}, passed, "{at: 3s, kind: kill, for: 2s}", ""},
		{[]string{"check", path, "--set", "fleet.n=4"}, passed, "n: 4", ""},
		{[]string{"check", wrong}, notRunnable, "", `wrong.yaml":1:`},
		{[]string{"check", policies}, passed, "    keys:\n      vip: blocked\n", ""},
		{[]string{"check", policies}, passed, "    max_debt: 900\n", ""},
		{[]string{"check", plans}, passed, "    plans:\n      pro: 1000/min\n", ""},
		{[]string{"check", plans}, passed, "    address: hops 1\n    ranges:\n      10.0.0.0/8: unlimited\n", ""},
		{[]string{"check", plans}, passed, "missing: refuse, cost: 1, plan: header X-Plan, hidden: false}\n", ""},
		{[]string{"check", policies}, passed, "{policy: api, key: header X-User, missing: refuse, cost: 3, hidden: false}\n", ""},
		{[]string{"check", policies}, passed, "  # any method, any host, /x and all paths below it, however the URL is spelled\n  - match: /x/\n", ""},
		{[]string{"check", quotas}, passed, "\n# policy \"q\": windows of 10/month from day 17 begin at" + next(tiered.Calendar{Unit: tiered.Month, Day: 17}) +
			"# policy \"q\": windows of 5/month in Asia/Tokyo from day 31 begin at" + next(tiered.Calendar{Unit: tiered.Month, Day: 31, Zone: "Asia/Tokyo"}) +
			"# warning: policy \"trap\": Policy.Limit.Per is 720h0m0s: a month?", ""},
		{[]string{"check", places}, passed, "      - {at_once: in-flight, key: header X-User, missing: refuse}\n", ""},
		{[]string{"check", places}, passed, "at_once:\n  - name: in-flight\n    places: 5\n    fail_mode: local\n    life: 10s\n", ""},
		{[]string{"check", badPlaces}, notRunnable, "", `bad-places.yaml:4:38: http[0].limits[0].at_once is "inflight": must be the name of a policy under at_once in this file, such as "in-flight"`},
		{[]string{"check", asJSON}, passed, "    limit: 7/s\n", ""},
		{[]string{"check", rulesOnly}, notRunnable, "", "rules.yaml:2:1: policies is missing"},
		{[]string{"check", badPolicies}, notRunnable, "", `bad.yaml:2:29: policies[0].limit`},
		{[]string{"run", path, "--policies", policies}, passed, "limit  api: 500/s burst 700, fail-open", ""},
		{[]string{"run", path, "--policies", policies, "--policy", "b"}, notRunnable, "", `has no policy named "b"`},
		{
			[]string{"run", "outage", "--policies", policies, "--policy", "free"},
			notRunnable, "",
			`policy "free" is unlimited`,
		},
		{[]string{"run", other, "--policies", policies}, notRunnable, "", `has no policy named ["users"]: name one of it by --policy`},
		{[]string{"run", path, "--policies", beside}, passed, "", ""},
		{[]string{"run", path, "--policies", beside, "--policy", "in-flight"}, notRunnable, "", `policy "in-flight": must be nil, because the scenario has no at_once`},
		{[]string{"run", flight, "--policies", beside, "--policy", "api"}, passed, "limit  api: 5/s\nplaces 5 of each key, fail-closed\n", ""},
		{[]string{"run", flight, "--policies", places}, passed, "limit  api: 50/s burst 50\nplaces 5 of each key\n", ""},
		{[]string{"run", flight, "--policies", twoPlaces}, notRunnable, "", `has policies ["in-flight" "exports"] under at_once: name one of them by --policy`},
		{
			[]string{"run", flight, "--policies", twoPlaces, "--policy", "exports"},
			passed, "limit  api: 60/s\nplaces 20 of each key\n", "",
		},
		{[]string{"run", path, "--policies", badPolicies}, notRunnable, "", "policies[0].limit"},
		{[]string{"run", path, "--policy", "api"}, notRunnable, "", `--policy is "api": needs --policies`},
		{[]string{}, passed, "Usage:", ""}, // for nil cobra takes those of the test's own process
		{[]string{"run", path, "--seed", "0"}, notRunnable, "", "--seed is 0"},
		{[]string{"run", path, "--set", "fleet.n=0"}, notRunnable, "", "must be"},
		{[]string{"run", path, "--set", "fleet.n"}, notRunnable, "", `--set is "fleet.n": must be PATH=VALUE`},
		{[]string{"run", path, "--set", "fleet.speed=3"}, notRunnable, "", "must be one of"},
		{[]string{"run", path, "--json", "/nowhere/x.json"}, notRunnable, "", "stat /nowhere"},
		{[]string{"run", path, "--json", "-", "--html", "-"}, notRunnable, "", `"-" is to be written twice`},
		{[]string{"run", path, path, "--json", "-"}, notRunnable, "", "several scenarios"},
		{[]string{"sweep", path, "--axis", "fleet.n"}, notRunnable, "", `--axis is "fleet.n"`},
		{[]string{"sweep", path, "--axis", "fleet.n=0,1"}, notRunnable, "", "fleet.n"},
		{[]string{"sweep", "pause"}, notRunnable, "", "has no axis"},
		{[]string{"replay", wrong}, notRunnable, "", "wrong.yaml"},
		{[]string{"diff", wrong, "/nowhere/x"}, notRunnable, "", "/nowhere/x"},
	} {
		out, problems, status := run(t, c.args...)
		if status != c.status || !strings.Contains(out, c.stdout) || !strings.Contains(problems, c.stderr) {
			t.Errorf("tiersim %q: status %d, stdout %q, stderr %q", c.args, status, out, problems)
		}
	}
}

// A report goes out, and comes back as the same run.
func TestReplayAndDiff(t *testing.T) {
	path, dir := file(t, "short.yaml", short), t.TempDir()
	a, b := filepath.Join(dir, "a.json"), filepath.Join(dir, "b.json")
	for _, args := range [][]string{
		{"run", path, "--json", a},
		{"run", path, "--seed", "2", "--set", "traffic.rate=150/s", "--json", b},
	} {
		if _, problems, status := run(t, args...); status != passed {
			t.Fatalf("%q: %s", args, problems)
		}
	}
	if out, problems, status := run(t, "replay", a); status != passed || !strings.Contains(out, "the same run") {
		t.Errorf("status %d, %q, %q", status, out, problems)
	}
	if out, _, status := run(t, "diff", a, a); status != passed || !strings.Contains(out, "no difference") {
		t.Errorf("status %d, %q", status, out)
	}
	if out, _, status := run(t, "diff", a, b); status != broken || !strings.Contains(out, "metrics.offered: ") {
		t.Errorf("status %d, %q", status, out)
	}
	// A report of another run: as if the limiter had changed.
	text := fatal.Get(os.ReadFile(a))(t)
	other := file(t, "other.json", strings.Replace(string(text), `"seed": 1,`, `"seed": 2,`, 1))
	if out, problems, status := run(t, "replay", other); status != broken || !strings.Contains(out, "another run") {
		t.Errorf("status %d, %q, %q", status, out, problems)
	}
}

// Stdout has the one thing that was asked for, and files have the others.
func TestFiles(t *testing.T) {
	path, dir := file(t, "short.yaml", short), t.TempDir()
	page := filepath.Join(dir, "page.html")
	out, problems, status := run(t, "run", path, "--json", "-", "--html", page)
	if status != passed || !strings.HasPrefix(out, "{\n") || !strings.HasSuffix(out, "}\n") {
		t.Errorf("status %d, %q, stdout %.100q", status, problems, out)
	}
	if text, err := os.ReadFile(page); err != nil ||
		!bytes.HasPrefix(text, []byte("<!doctype html>")) && !bytes.HasPrefix(text, []byte("<!DOCTYPE html>")) {
		t.Errorf("%v: %.40q", err, text)
	}
	// Several: one page with all of them, and the last line says where.
	other := file(t, "other.yaml", strings.Replace(short, "kill", "blackhole", 1))
	out, problems, status = run(t, "run", path, other, "--html", page)
	last := "HTML: " + page + "\n"
	if status != passed || !strings.HasSuffix(out, last) || !strings.Contains(out, "during") {
		t.Errorf("status %d, %q, %q", status, problems, out)
	}
	if text := fatal.Get(os.ReadFile(page))(t); bytes.Count(text, []byte("<section ")) != 4 {
		t.Errorf("the page has %d runs", bytes.Count(text, []byte("<section "))/2)
	}
	// A sweep has one too, and a drawing is the same bytes each time.
	var drawings [2]string
	for i := range drawings {
		out, problems, status = run(t, "sweep", path, "--svg", "-", "--html", page)
		if drawings[i] = out; status != passed || !strings.HasPrefix(out, "<svg ") || !strings.HasSuffix(out, "</svg>\n") {
			t.Errorf("status %d, %q, stdout %.100q", status, problems, out)
		}
	}
	if drawings[0] != drawings[1] {
		t.Error("the drawings differ")
	}
}

// A page is opened as the desktop opens a file.
func TestOpen(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the stub is that of Linux")
	}
	path, dir := file(t, "short.yaml", short), t.TempDir()
	fatal.If(t, os.WriteFile(filepath.Join(dir, "xdg-open"), []byte("#!/bin/sh\ncp \"$1\" "+dir+"/opened\n"), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("TMPDIR", dir)
	if out, problems, status := run(t, "run", path, "--open"); status != passed || !strings.Contains(out, "HTML: "+dir+"/tiersim-") {
		t.Errorf("status %d, %q, %q", status, out, problems)
	}
	if text := fatal.Get(os.ReadFile(filepath.Join(dir, "opened")))(t); !bytes.HasPrefix(text, []byte("<!doctype html>")) {
		t.Errorf("%.40q was opened", text)
	}
	fatal.If(t, os.WriteFile(filepath.Join(dir, "xdg-open"), []byte("#!/bin/sh\nexit 3\n"), 0o700))
	if _, problems, status := run(t, "run", path, "--open", "--html", dir+"/x.html"); status != notRunnable || !strings.Contains(problems, "x.html yourself") {
		t.Errorf("status %d, %q", status, problems)
	}
}

// No file is written twice: a page and JSON in one file are refused before the run.
func TestOneFileEach(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"a", "b"} {
		fatal.If(t, os.Mkdir(name, 0o700))
		fatal.If(t, os.WriteFile(filepath.Join(name, "x.yaml"), []byte(short), 0o600))
	}
	for line, want := range map[string]string{
		"run a/x.yaml --html ./out --json a/../out": `"a/../out" is to be written twice`,
		"run a/x.yaml b/x.yaml --html - --svg -":    `"-" is to be written twice`,
	} {
		out, problems, status := run(t, strings.Fields(line)...)
		if status != notRunnable || out != "" || !strings.Contains(problems, want) {
			t.Errorf("tiersim %s: status %d, %q, %q", line, status, problems, out)
		}
	}
	if left, err := filepath.Glob("*"); err != nil || len(left) != 2 {
		t.Errorf("files were written: %q, %v", left, err)
	}
	if _, problems, status := run(t, "run", "a/x.yaml", "--html", "out.html", "--json", "out.json"); status != passed {
		t.Errorf("two files: status %d, %q", status, problems)
	}
}

func TestSweep(t *testing.T) {
	path := file(t, "short.yaml", short)
	out, problems, status := run(t, "sweep", path)
	if status != passed || !strings.Contains(out, "PASS  2 of 2") {
		t.Errorf("status %d, %q, %s", status, problems, out)
	}
	out, _, status = run(t, "sweep", path, "--axis", "fleet.mode=closed,open", "--axis", "traffic.rate=500/s", "--json", "-")
	if status != passed || strings.Count(out, `"unseed"`) != 2 || strings.Count(out, `"passed": false`) != 1 {
		t.Errorf("cells for comparison: status %d, %s", status, out)
	}
	failing := file(t, "failing.yaml", strings.Replace(short, "{n: 3}", "{n: 3, mode: open}", 1))
	out, _, status = run(t, "sweep", failing, "--axis", "fleet.mode=closed,open", "--set", "traffic.rate=500/s")
	if status != broken || !strings.Contains(out, "FAIL  1 of 2 kept all expectations") {
		t.Errorf("the scenario as it is: status %d, %s", status, out)
	}
}

// The examples of the help are of scenarios that exist, and of flags that do. A file is one of the
// user's.
func TestExamples(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"mine.yaml": short, "policies.yaml": "version: 1\npolicies: [{name: per-user, limit: 100/s}]\n",
	} {
		fatal.If(t, os.WriteFile(name, []byte(text), 0o600))
	}
	examples := 0
	for _, c := range tiersim.Commands() {
		for line := range strings.Lines(c.Example) {
			words := strings.Fields(line)
			if len(words) < 2 || words[0] != "tiersim" || words[1] != c.Name() {
				t.Errorf("%s has the example %q", c.Name(), line)
				continue
			}
			examples++
			if err := tiersim.Understands(words[1:]...); err != nil {
				t.Errorf("%s: %v", line, err)
				continue
			}
			// Of the examples with a file of policies the scenario has to take them.
			if strings.Contains(line, "--policies") {
				if _, problems, status := run(t, words[1:]...); status != passed {
					t.Errorf("%s: status %d, %s", line, status, problems)
				}
			}
		}
	}
	if examples < 10 {
		t.Errorf("only %d examples", examples)
	}
}

// A bar moves on a terminal, and nowhere else.
func TestBar(t *testing.T) {
	path := file(t, "short.yaml", short)
	for terminal, want := range map[bool]bool{true: true, false: false} {
		var o, p bytes.Buffer
		status := tiersim.Execute(&o, &p, terminal, false, "sweep", path)
		if status != passed || strings.Contains(p.String(), "sweeping") != want || strings.Contains(o.String(), "sweeping") {
			t.Errorf("terminal %v: status %d, stderr %q", terminal, status, p.String())
		}
	}
}

func TestColors(t *testing.T) {
	for _, c := range []struct {
		env      map[string]string
		terminal bool
		want     bool
	}{
		{nil, true, true},
		{nil, false, false},
		{map[string]string{"NO_COLOR": "1"}, true, false},
		{map[string]string{"NO_COLOR": ""}, true, true},
		{map[string]string{"TERM": "dumb"}, true, false},
	} {
		if got := tiersim.Colors(func(name string) string { return c.env[name] }, c.terminal); got != c.want {
			t.Errorf("%v, terminal %v: colors %v", c.env, c.terminal, got)
		}
	}
	path := file(t, "short.yaml", short)
	var o bytes.Buffer
	tiersim.Execute(&o, &o, false, true, "run", path)
	if !strings.Contains(o.String(), "\x1b[32mPASS") {
		t.Errorf("no colors on a terminal: %q", o.String())
	}
}

func TestCompletion(t *testing.T) {
	for _, c := range []struct {
		args       []string
		has, lacks string
	}{
		{[]string{"run", "out"}, "outage-open\n", "\nsim"},
		{[]string{"sweep", ""}, "blackhole\n", "\nsim"},
	} {
		out, _, status := run(t, append([]string{"__complete"}, c.args...)...)
		if status != passed || !strings.Contains(out, c.has) || strings.Contains(out, c.lacks) {
			t.Errorf("%q: status %d, %q", c.args, status, out)
		}
	}
}
