package measure_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

var update = flag.Bool("update", false, "write the golden files")

// rehearsed is a run by hand of a limiter that fails open: 20 requests per second for 10, a fault
// from 10 s to 20 s of 30.
func rehearsed() *measure.Report {
	x := made(
		expecting("over_admission", "<=", 100, 0, 0), expecting("decide_p99", "<=", 0.001, 10*s, 20*s),
		expecting("shortfall", "<=", 0.05, 0, 10*s), fault(25*s, "evict", scenario.Fault{Keys: 3}),
		func(x *scenario.Scenario) {
			x.Learn = "what fail-open costs"
			x.Fleet.Mode, x.WarmUp = "open", scenario.Duration(2*s)
			x.Sometimes = []string{"breaker_open", "fallback_spent"}
		},
	)
	m := measure.New(x)
	tell(m, "0s 0 join, 0s 1 join")
	bucket := bucketsOf(x.Limits[0])
	var opened, spent int64
	for i := range 600 {
		at := time.Duration(i)*50*ms + 1
		switch at - 1 {
		case 10 * s:
			tell(m, "10s 0 begin, 10.2s 0 open, 10.3s 1 open")
		case 20 * s:
			tell(m, "20s 0 end, 20s 7 calls, 20.6s 1 closed, 20.7s 0 closed")
		case 25 * s:
			tell(m, "25s 1 begin")
		}
		r := m.Asked(at, i%2, 0, "\x1b]0;key\a", 1, common)
		switch outage := at >= 10*s+200*ms && at < 20*s+600*ms; {
		case outage:
			opened++
			m.Decided(at, r, tiered.Decision{Allowed: true, Reason: tiered.Open, Tier: tiered.Failover})
		case at >= 10*s && at < 20*s:
			opened++
			m.Decided(at+50*ms, r, tiered.Decision{Allowed: true, Reason: tiered.Open, Tier: tiered.Failover})
		default:
			m.Called(at, i%2, 1)
			d := limited
			if bucket.take(at, 1) {
				d, spent = granted, spent+1
				m.Granted(at, 0, 1)
			}
			m.Decided(at+400*time.Microsecond, r, d)
		}
		if i%2 == 1 {
			p := leased(spent, spent, 0, 0)
			p.Tokens.Open = opened
			m.Sample(at+50*ms, 0, tiered.Stats{Policies: map[string]tiered.PolicyStats{"api": p}}, i == 599)
		}
	}
	r := m.Report()
	r.Seed, r.Version = 7, "v1.0.0 go1.26"
	return r
}

// golden compares text with a file of testdata; -update writes it.
func golden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		fatal.If(t, os.MkdirAll("testdata", 0o755))
		fatal.If(t, os.WriteFile(path, []byte(got), 0o644))
	}
	text := fatal.Get(os.ReadFile(path))(t)
	if got != string(text) {
		t.Errorf("%s is\n%s\nand not as in the file; -update writes it", file, got)
	}
}

// One report, and two side by side with a hostile name and no faults in the second. After a change:
// go test ./sim/measure -run TestText -update, and read the difference.
func TestText(t *testing.T) {
	golden(t, "report.txt", rehearsed().String())
	quiet := measure.New(made(calm, expecting("utilisation", ">=", 0.5, 0, 0)))
	ask(quiet, 1*s, 0, 0, "k", 3, 3)
	var b strings.Builder
	fatal.If(t, measure.Text(&b, []string{"open", "ca\x1b[31mlm"}, []*measure.Report{rehearsed(), quiet.Report()}, false))
	golden(t, "side.txt", b.String())
	b.Reset()
	if err := measure.Text(&b, []string{"open"}, []*measure.Report{rehearsed()}, true); err != nil ||
		!strings.Contains(b.String(), "\n\x1b[31mFAIL") {
		t.Errorf("%v: no colors", err)
	}
}

func TestSweepText(t *testing.T) {
	r := rehearsed()
	sweep := &measure.Sweep{
		Scenario: r.Scenario, Seed: 7,
		Axes: []scenario.Axis{{Path: "fleet.mode", Values: []string{"open", "closed"}}, {Path: "fleet.n", Values: []string{"2"}}},
		Cells: []measure.Cell{
			{Values: map[string]string{"fleet.mode": "open", "fleet.n": "2"}, Metrics: r.Metrics},
			{Values: map[string]string{"fleet.mode": "closed", "fleet.n": "2"}, Metrics: r.Metrics, Passed: true, AsIs: true},
		},
	}
	var b strings.Builder
	fatal.If(t, sweep.Text(&b, false))
	golden(t, "sweep.txt", b.String())
	want(t, "passed: a cell for comparison breaks nothing", sweep.Passed(), true)
	sweep.Cells[1].Passed = false
	want(t, "passed: the scenario as it is must", sweep.Passed(), false)
}

// Several limits have columns of their own, in which what is of the fleet is not known.
func TestTextOfLimits(t *testing.T) {
	m := measure.New(made(twoLimits, func(x *scenario.Scenario) { x.WarmUp = 0 }))
	ask(m, 2*s, 0, 0, "k", 15, 12)
	ask(m, 2*s, 0, 1, "k", 4, 3)
	m.Called(2*s, 0, 56)
	text := m.Report().String()
	for metric, cells := range map[string]string{
		"":               "before (2s-10s) during (10s-20s) after (20s-30s) all limit api limit users",
		"offered":        "19 0 0 19 15 4",
		"over_admission": "2 0 0 2 2 1",
		"redis_calls":    "7/s 0/s 0/s 2/s - -",
	} {
		found := false
		for line := range strings.Lines(text) {
			found = found || strings.Join(strings.Fields(line), " ") == strings.TrimSpace(metric+" "+cells)
		}
		if !found {
			t.Errorf("no line %s %s in\n%s", metric, cells, text)
		}
	}
}

// Whatever a report from elsewhere says, nothing of it moves a cursor.
func TestTextQuotes(t *testing.T) {
	r := rehearsed()
	evil := "a\x1b[2J\tb\nPASS\u202e"
	r.Scenario.Name, r.Scenario.Learn, r.Scenario.Fleet.Mode, r.Scenario.Limits[0].Name = evil, evil, evil, evil
	r.Unseed, r.Phases[0].Name, r.Expectations[0].Text, r.Faults[0].Text = evil, evil, evil, evil
	r.Sometimes[0].Name, r.Sometimes[len(r.Sometimes)-1] = evil, measure.Happening{Name: evil, Count: 1}
	other := rehearsed()
	text := r.String()
	for _, d := range measure.Diff(r, other, 0) {
		text += d + "\n"
	}
	if strings.ContainsAny(text, "\x1b\t\u202e") {
		t.Errorf("not quoted:\n%s", text)
	}
	if n := strings.Count(text, `\x1b[2J\tb\nPASS\u202e`); n < 11 {
		t.Errorf("quoted %d times:\n%s", n, text)
	}
}

// A report without a scenario is no trouble.
func TestTextOfAnEmptyReport(t *testing.T) {
	if text := new(measure.Report).String(); !strings.Contains(text, "FAIL") {
		t.Error(text)
	}
}

func TestFigures(t *testing.T) {
	for _, c := range []struct {
		v    float64
		u    scenario.Unit
		want string
	}{
		{1234.5678, scenario.Tokens, "1235"},
		{123456, scenario.Tokens, "123456"},
		{0.07, scenario.Ratio, "7%"},
		{0.123456, scenario.Ratio, "12.35%"},
		{0.0015, scenario.Seconds, "1.5ms"},
		{0, scenario.Seconds, "0s"},
		{0.99999, scenario.Seconds, "1s"},
		{90, scenario.Seconds, "90s"},
		{3e-7, scenario.Seconds, "300ns"},
		{261.25, scenario.PerSec, "261.2/s"},
		{0.29, scenario.Count, "0.29"},
		{-1, scenario.Tokens, "-"},
	} {
		want(t, "figure", measure.Figure(c.v, c.u), c.want)
	}
}

// A sentence says who was refused, how many tokens were too many, and when all was normal again.
func TestSentences(t *testing.T) {
	within := map[string]measure.Metrics{
		"api":   {Offered: 100, Ideal: 60, DeniedWithin: 0.3}, // asked for more than there is: any limiter refuses some of it
		"users": {Offered: 10, Ideal: 10},
	}
	refused := map[string]measure.Metrics{"users": {Offered: 10, Ideal: 10, DeniedWithin: 0.013}}
	fault, after := []measure.FaultSpan{{"at 10s kill", 10, 20}}, []measure.Phase{{Name: "after"}}
	mode := func(mode string) *scenario.Scenario {
		return &scenario.Scenario{Fleet: scenario.Fleet{Mode: mode}, Limits: []scenario.Limit{{Name: "api"}, {Name: "users"}}}
	}
	for _, c := range []struct {
		report measure.Report
		want   string
	}{
		{
			measure.Report{Faults: fault, Limits: within, Metrics: measure.Metrics{OverAdmission: 159.7, Recovered: 1.2}},
			"fail-local: nobody within the limit refused, 160 tokens too many, normal again after 1.2 s",
		},
		{
			measure.Report{Scenario: mode("closed"), Faults: fault, Limits: refused, Metrics: measure.Metrics{OverAdmission: 0.2}},
			"fail-closed: 1.3 % of the requests within the limit refused, no token too many, normal again at once",
		},
		{
			measure.Report{
				Scenario: mode("open"), FailModes: map[string]string{"users": "closed"}, Faults: fault, Phases: after,
				Metrics: measure.Metrics{OverAdmission: 1, Shortfall: 0.05, Recovered: -1},
			},
			"fail-closed and fail-open: 5 % of what the limit allows refused, 1 token too many, not normal again before the end",
		},
		{
			measure.Report{Faults: fault, Metrics: measure.Metrics{Shortfall: -1, Recovered: -1}},
			"fail-local: no token too many, the fault lasts to the end",
		},
		{
			measure.Report{Faults: fault, Metrics: measure.Metrics{}},
			"fail-local: nothing refused that the limit allows, no token too many, normal again at once",
		},
		{measure.Report{Limits: within}, "no name"},
	} {
		var b strings.Builder
		_ = measure.Text(&b, []string{"x"}, []*measure.Report{&c.report}, false)
		first, _, _ := strings.Cut(b.String(), "\n")
		want(t, "sentence", first, c.want)
	}
	// Two runs of one fail mode have their names; nothing in a name moves a cursor.
	local, open := &measure.Report{Faults: fault}, &measure.Report{Scenario: mode("open"), Faults: fault}
	var b strings.Builder
	_ = measure.Text(&b, []string{"a\x1b", "b", "c"}, []*measure.Report{local, local, open}, false)
	for i, line := range strings.Split(b.String(), "\n")[:3] {
		if begins := []string{`"a\x1b", fail-local: `, "b, fail-local: ", "fail-open: "}[i]; !strings.HasPrefix(line, begins) {
			t.Errorf("%q begins not with %q", line, begins)
		}
	}
}
