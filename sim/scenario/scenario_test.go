package scenario_test

import (
	"encoding/json"
	"go/doc/comment"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func mustParse(t testing.TB, text string) *scenario.Scenario {
	t.Helper()
	return fatal.Get(scenario.Parse(text))(t)
}

// The scenario in the package's comment is one.
func TestDocExample(t *testing.T) {
	source := fatal.Get(os.ReadFile("doc.go"))(t)
	text, _, _ := strings.Cut(string(source), "\npackage ")
	var p comment.Parser
	for _, block := range p.Parse(strings.ReplaceAll(strings.ReplaceAll(text, "// ", ""), "//", "")).Content {
		if code, ok := block.(*comment.Code); ok {
			s := mustParse(t, code.Text)
			if len(s.Limits) != 2 || len(s.Traffic) != 2 || len(s.Faults) != 2 || len(s.Expect) != 2 || len(s.Sweep) != 2 {
				t.Errorf("%+v", s)
			}
			return
		}
	}
	t.Error("there is none")
}

// A scenario as it is written.
const written = `name: 'all "of": it'
learn: "5"
limits:
  - {name: api, rate: 1000/s, burst: 500}
  - {name: "null", rate: 1000000/min}
  - {name: odd, rate: 10/100ms}
fleet: {n: 50, mode: closed, size: -1, period: 1s, processes: 50, budget: 10ms, timeout: 30ms, maxkeys: 1000, inflight: 2, standing: off}
traffic:
  - {shape: poisson, limit: api, rate: 1500.5/s, keys: 200, keyskew: 1.1, procskew: 0.5, cost: 2, maxcost: 9, cancel: 50%}
  - {shape: bursts, limit: "null", rate: 10/s, every: 2s, for: 800ms, keys: -1}
  - {shape: ramp, limit: api, rate: 1/s, to: 100/s}
  - {shape: diurnal, limit: api, rate: 1/s, to: 100/s, every: 1m30s}
  - {shape: closed, limit: odd, clients: 100, think: 50ms, retry: 3}
net: {rtt: 300us, jitter: 1.5ms}
faults:
  - {at: 20s, kind: blackhole, for: 15s, procs: 10%, only: replies}
  - {at: 20s, kind: clock, by: -1h}
  - {at: 1h0m1s, kind: refuse, for: 1s, error: 'ERR max number, of: clients'}
run: 2h
warmup: 5s
expect:
  - over_admission <= 1000
  - shortfall <= 5% after=20s before=1m limit=null
  - decide_p99 <= 1.5ms
  - redis_calls <= 500/s
  - utilisation >= 99.5%
sometimes: [breaker_open, lease_lost]
sweep:
  fleet.size: [0, 1_0]
  faults.3.error: [OOM, "NULL"]
`

func TestString(t *testing.T) {
	s := mustParse(t, written)
	if got := s.String(); got != written {
		t.Errorf("written\n%s\nwant\n%s", got, written)
	}
	for _, line := range []string{s.Faults[0].String(), s.Faults[2].String(), s.Expect[1].String()} {
		if !slices.Contains([]string{
			"blackhole for=15s procs=10% only=replies", `refuse for=1s error="ERR max number, of: clients"`,
			"shortfall <= 5% after=20s before=1m limit=null",
		}, line) {
			t.Errorf("in a line: %s", line)
		}
	}
	if got := new(scenario.Scenario).String(); got != "{}\n" {
		t.Errorf("nothing is written as %q", got)
	}
}

// A rate per period, a share and a time are the numbers that people mean.
func TestValues(t *testing.T) {
	s := mustParse(t, full(`+
limits:
  - {name: a, rate: 7/day}
  - {name: b, rate: 100_000/min, burst: 1_000}
  - {name: c, rate: 3/5m}
  - {name: d, burst: 20, rate: 10/s and 1000/h burst 30}
  - {name: e, rate: 500/day in Europe/Berlin, algorithm: fixed window}
traffic:
  - {shape: poisson, limit: a, rate: 90/min, cancel: 0.1%}
  - {shape: poisson, limit: a, rate: 2.5/100ms, cancel: 0.3}
faults:
  - {at: 0.5m, kind: crash, procs: 12.5%}
  - {at: 20s, kind: flush}
expect:
  - decide_p99 <= 1m0.5s
  - redis_calls <= 6/min
  - redis_calls <= 6
  - alone <= 1_000.5
  - decide_max <= 0
start: 2026-10-25T22:00:00+02:00
`))
	if !s.Begin().Equal(time.Date(2026, 10, 25, 20, 0, 0, 0, time.UTC)) {
		t.Errorf("begins at %v", s.Begin())
	}
	if again := mustParse(t, s.String()); !reflect.DeepEqual(again, s) {
		t.Errorf("written as\n%s", s)
	}
	if !slices.Equal(s.Limits, []scenario.Limit{
		{Name: "a", Limit: tiered.PerDay(7)},
		{Name: "b", Limit: tiered.PerMinute(100_000).WithBurst(1000)},
		{Name: "c", Limit: tiered.Per(3, 5*time.Minute)},
		{Name: "d", Limit: tiered.PerSecond(10).WithBurst(20).And(tiered.PerHour(1000).WithBurst(30))},
		{Name: "e", Limit: tiered.PerDay(500).In("Europe/Berlin"), Algorithm: "fixed window"},
	}) {
		t.Errorf("%+v", s.Limits)
	}
	if x, y := s.Traffic[0], s.Traffic[1]; x.Rate != 1.5 || x.Cancel != 0.001 || y.Rate != 25 || y.Cancel != 0.3 {
		t.Errorf("%+v", s.Traffic)
	}
	// in the order of their times
	if f := s.Faults[1]; f.Procs != (scenario.Part{Share: 0.125}) || f.At != scenario.Duration(30*time.Second) {
		t.Errorf("%+v", s.Faults)
	}
	var values []float64
	for _, e := range s.Expect {
		values = append(values, e.Value)
	}
	if !slices.Equal(values, []float64{60.5, 0.1, 6, 1000.5, 0}) {
		t.Errorf("%v", values)
	}
}

// A scenario made in Go is held to the same rules, and to the order of its faults.
func TestValidate(t *testing.T) {
	s := mustParse(t, full(`+
faults: [{at: 10s, kind: cut, procs: 5%, chance: 5%}, {at: 20s, kind: flush}]
expect: [alone <= 5, decide_max <= 5s, alone <= 5]
`))
	s.Traffic[0].Rate, s.Traffic[0].KeySkew, s.Traffic[0].ProcSkew = math.Inf(1), math.NaN(), math.Inf(-1)
	s.Faults[0].Chance, s.Faults[0].Procs.Count, s.Faults[1].At = math.NaN(), 3, scenario.Duration(7*time.Second)
	s.Expect[0].Value, s.Expect[1].Value, s.Expect[2].Limit = math.NaN(), math.Inf(1), "api after=7s"
	s.Length, s.Fleet.N, s.Limits[0].Limit.Per = math.MinInt64, math.MinInt64, 0
	s.Name, s.Learn = "\xff", strings.Repeat("é", 301)
	want := `name is "\xff": must be 1 to 100 printable characters
learn is "éééééééééééééééééééééééééééééé…": must be 1 to 300 printable characters
limits.1.rate is "1000/0s": "0s" at position 6 must be s, min, h, day, week, month, quarter, year, or a duration such as 15min, 1h30m or 30d, from 1us to 100 years in whole us
fleet.n is "-9223372036854775808": must be 1 to 5000
traffic.1.rate is "+Inf/s": must be a number per period, as in 1000/s, 100/min or 10/100ms
traffic.1.keyskew is "NaN": must be a number, as in 1.1
traffic.1.procskew is "-Inf": must be a number, as in 1.1
faults.1.procs is "5% and 3": must be a number of processes or a share of them, as in 3 or 10%
faults.1.chance is "NaN%": must be a ratio, as in 5% or 0.05
run is "-2562047h47m16.854775808s": must be 1s to 24h
expect.1.value is "NaN": must be tokens, as in 1000
expect.2.value is "+Infs": must be a time, as in 1ms or 1.5s
expect.3.limit is "\"api": must be 1 to 64 of A-Z a-z 0-9 _ . -, or left out for the first
expect.3.after is "7s\"": must be a duration, as in 300us, 1.5s or 1h
faults.2.at is 7s: must not be before the fault that is listed before it, at 10s`
	if err := s.Validate(); err == nil || err.Error() != want {
		t.Errorf("said\n%v\nwant\n%s", err, want)
	}
	if s.String() == "" {
		t.Error("it must be written all the same")
	}
}

// JSON has a scenario as its text, and reads each field as Parse does.
func TestJSON(t *testing.T) {
	s := mustParse(t, written)
	data := fatal.Get(json.Marshal(struct{ A, B *scenario.Scenario }{s, nil}))(t)
	var again struct{ A, B *scenario.Scenario }
	if err := json.Unmarshal(data, &again); err != nil || !reflect.DeepEqual(again.A, s) || again.B != nil {
		t.Errorf("%v: %s", err, data)
	}
	if err := json.Unmarshal([]byte(`{"A":"fleet: {n: 0}"}`), &again); err == nil ||
		!strings.Contains(err.Error(), `1:12: fleet.n is "0": must be 1 to 5000`) {
		t.Errorf("said %v", err)
	}
}
