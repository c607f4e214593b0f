package sim_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// oneKey is a scenario of one key, at which a policy of a test is run.
func oneKey(rate, length, more string) string {
	return fmt.Sprintf("name: one key\nlimits: [{name: api, rate: 1000000/s}]\nfleet: {n: 3}\n"+
		"traffic: [{shape: poisson, rate: %s}]\nrun: %s\n%s", rate, length, more)
}

// ran runs a policy, and wants the ideal to admit so many tokens and the fleet as many, within some.
func ran(t *testing.T, text string, p tiered.Policy, ideal, some int64) *measure.Report {
	t.Helper()
	r := fatal.Get(sim.Run(parse(t, text), &sim.Options{Policies: []tiered.Policy{p}}))(t)
	m := r.Metrics
	if m.Ideal < ideal-some || m.Ideal > ideal+some {
		t.Errorf("%v: the ideal admits %d, want %d", p.Limit, m.Ideal, ideal)
	}
	if m.Admitted < ideal-some || m.Admitted > ideal+some || m.OverAdmission >= 1 {
		t.Errorf("%v: %d are admitted, %v too many: want %d, none too many", p.Limit, m.Admitted, m.OverAdmission, ideal)
	}
	return r
}

// line wants the limit's line to be at a value from one time to another.
func line(t *testing.T, r *measure.Report, from, to time.Duration, least, most float64) {
	t.Helper()
	step := time.Duration(r.Series.StepS * float64(time.Second))
	for at := from; at < to; at += step {
		is := -1.0 // not there
		if i := int(at / step); i < len(r.Series.Limit) {
			is = r.Series.Limit[i]
		}
		if is < least || is > most {
			t.Fatalf("%v: at %v the limit is %v, want %v to %v", &r.Scenario.Limits[0], at, is, least, most)
		}
	}
}

// Of several limits each binds: the second one when its bucket is empty. Both are what the ideal
// is, what the line is, and what too much is measured by.
func TestSeveralLimits(t *testing.T) {
	p := tiered.Policy{Limit: tiered.PerSecond(10).WithBurst(20).And(tiered.PerMinute(120)), Lease: tiered.Lease{Size: tiered.NoLease}}
	const warm = 24 // of the 120 and 4 per second, that the ideal admits before it is measured
	r := ran(t, oneKey("30/s", "60s", ""), p, 120+2*60-warm-20, 30)
	line(t, r, 0, 8*time.Second, 10, 10)
	line(t, r, 20*time.Second, 60*time.Second, 2, 2)
	if text := r.String(); !strings.Contains(text, "limit  api: 10/s burst 20 and 120/min\n") {
		t.Errorf("said\n%s", text)
	}
	again := fatal.Get(sim.Run(r.Scenario, nil))(t) // the report says all that was run, but for the lease
	if again.Metrics.Ideal != r.Metrics.Ideal {
		t.Errorf("replayed: the ideal admits %d, and %d before", again.Metrics.Ideal, r.Metrics.Ideal)
	}

	// 5 per second are within the first limit, and 3 per second beyond the second.
	p.FailMode = tiered.FailOpen
	text := oneKey("5/s", "120s", "faults: [{at: 2s, kind: blackhole}]\n")
	open := fatal.Get(sim.Run(parse(t, text), &sim.Options{Policies: []tiered.Policy{p}}))(t)
	if over := open.Metrics.OverAdmission; over < 180 || over > 300 {
		t.Errorf("without Redis %v are too many of the second limit, want some 240", over)
	}
}

// A window of the calendar ends when its zone says so: a month, a day, and days of 23 and 25 hours.
func TestCalendarWindows(t *testing.T) {
	berlin := tiered.PerDay(60).In("Europe/Berlin")
	const end, length = 20 * time.Minute, 40 * time.Minute // of a window, and of the run
	for start, l := range map[string]tiered.Limit{
		"2000-01-01T00:40:00Z": tiered.PerMonth(60).In("Atlantic/Azores"),
		"2026-11-16T22:40:00Z": tiered.PerMonth(60).In("Europe/Berlin").From(17),
		"2026-06-01T21:40:00Z": berlin,
		"2026-03-29T21:40:00Z": berlin, // its day has 23 hours
		"2026-10-25T22:40:00Z": berlin, // 25 hours
	} {
		r := ran(t, oneKey("20/min", length.String(), "start: "+start+"\n"), tiered.Policy{Limit: l, Algorithm: tiered.FixedWindow}, 2*60, 3)
		line(t, r, end-10*time.Minute, end, 0, 0) // 60 are spent by then
		line(t, r, end, end+time.Minute, 0.01, 60)
		line(t, r, end+10*time.Minute, length, 0, 0)
		if want := "limit  api: " + l.String() + ", fixed window\n"; !strings.Contains(r.String(), want) {
			t.Errorf("want %s in\n%v", want, r)
		}
	}
	// Without Redis the quota is exceeded by what is offered beyond it in one window.
	p := tiered.Policy{Limit: berlin, Algorithm: tiered.FixedWindow, FailMode: tiered.FailOpen}
	r := fatal.Get(sim.Run(parse(t, oneKey("20/min", "10m", "faults: [{at: 2s, kind: blackhole}]\n")), &sim.Options{Policies: []tiered.Policy{p}}))(t)
	if over := r.Metrics.OverAdmission; over < 110 || over > 170 {
		t.Errorf("%v are too many, want some 140 of 200 in one window", over)
	}
}

// A window or an interval is judged as the policy counts, and each key by its own limit.
func TestOtherWaysToCount(t *testing.T) {
	own := func(key string) tiered.Limit {
		if strings.HasSuffix(key, "0") {
			return tiered.PerMinute(6)
		}
		return tiered.Limit{}
	}
	for _, p := range []tiered.Policy{
		{Limit: tiered.PerMinute(30), Algorithm: tiered.FixedWindow},
		{Limit: tiered.PerMinute(30), Algorithm: tiered.FixedWindow, Calendar: true},
		{Limit: tiered.PerMinute(30), Algorithm: tiered.SlidingLog},
		{Limit: tiered.PerMinute(30), Algorithm: tiered.SlidingWindow},
		{Limit: tiered.PerSecond(5).And(tiered.PerMinute(30)), Algorithm: tiered.SlidingWindow},
		{Limit: tiered.PerMinute(30), PerKey: own},
		{Limit: tiered.PerMinute(30), PerKey: own, Algorithm: tiered.FixedWindow},
	} {
		text := strings.Replace(oneKey("20/s", "5m", ""), "rate: 20/s", "rate: 20/s, keys: 11", 1)
		r := fatal.Get(sim.Run(parse(t, text), &sim.Options{Policies: []tiered.Policy{p}}))(t)
		if m := r.Metrics; m.OverAdmission >= 1 || m.Utilisation < 0.97 || m.Utilisation > 1.005 {
			t.Errorf("%v %v: %v too many, and %v of the ideal: %d of %d", p.Algorithm, p.Limit, m.OverAdmission, m.Utilisation, m.Admitted, m.Ideal)
		}
	}
}
