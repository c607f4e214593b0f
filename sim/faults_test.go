package sim_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
)

// stage is what every fault is put on: ten processes that share one key, asked for half more than
// its limit.
const stage = `name: a fault
limits:
  - {name: api, rate: 200/s, burst: 200}
fleet: {n: 10}
traffic:
  - {shape: poisson, rate: 300/s}
run: 12s
`

// count is how often something happened.
func count(r *measure.Report, happening string) int64 {
	for _, h := range r.Sometimes {
		if h.Name == happening {
			return h.Count
		}
	}
	return 0
}

// mean is the mean of a series from a time to another, in seconds.
func mean[T int64 | float64](r *measure.Report, series []T, from, to float64) float64 {
	var sum float64
	n := 0
	for i, v := range series {
		if at := float64(i) * r.Series.StepS; at >= from-1e-9 && at+r.Series.StepS <= to+1e-9 {
			sum += float64(v)
			n++
		}
	}
	return sum / float64(n)
}

// processes is how many processes there are at the end.
func processes(r *measure.Report) int {
	return r.Scenario.Fleet.N + int(count(r, "process_joined")-count(r, "process_died"))
}

// notSo returns why a word about a run is not true, or "": +happening, -happening, died=N,
// processes=N, open=SHARE@FROM-TO of the breakers, and healed.
func notSo(r *measure.Report, word string) string {
	var n, share, from, to float64
	sign, name := word[:1], word[1:]
	if word == "healed" {
		word = "open=0@10-12"
	}
	got := ""
	switch {
	case sign == "+" && count(r, name) == 0, sign == "-" && count(r, name) > 0:
		got = fmt.Sprint(count(r, name))
	case sign == "+", sign == "-":
	case has(word, "died=%g", &n) && count(r, "process_died") != int64(n):
		got = fmt.Sprint(count(r, "process_died"))
	case has(word, "processes=%g", &n) && processes(r) != int(n):
		got = fmt.Sprint(processes(r))
	case has(word, "open=%g@%g-%g", &share, &from, &to) && math.Abs(mean(r, r.Series.Open, from, to)-share) >= 0.05:
		got = fmt.Sprint(mean(r, r.Series.Open, from, to))
	}
	return got
}

func has(word, form string, values ...any) bool {
	n, _ := fmt.Sscanf(word, form, values...)
	return n == len(values)
}

// Each kind of fault does what it says, and nothing is left of it.
func TestEachFault(t *testing.T) {
	for _, c := range []struct {
		fault string
		words string
		is    func(r *measure.Report) bool // besides
	}{
		{
			"", "-breaker_open -lease_lost -fallback -state_loss -clock_step -process_died -late_call open=0@0-12",
			func(r *measure.Report) bool { return r.Metrics.OverAdmission < 0.1 && r.Metrics.Utilisation > 0.97 },
		},
		{"kind: kill, for: 3s", "+breaker_open +breaker_closed +fallback +probe_failed +script_sent open=1@7-8 healed", nil},
		{"kind: freeze, for: 3s", "+breaker_open +breaker_closed +fallback -lease_lost open=1@7-8 healed", nil},
		{"kind: refuse, error: LOADING, for: 3s", "+breaker_open +breaker_closed +fallback -lease_lost open=1@7-8 healed", nil},
		{"kind: refuse, error: NOAUTH, for: 3s", "+breaker_open +fallback open=1@7-8 healed", nil},
		{"kind: refuse, error: WRONGTYPE, for: 3s", "-breaker_open open=0@0-12", nil},
		{"kind: blackhole, for: 3s", "+breaker_open +breaker_closed +fallback -lease_lost open=1@7-8 healed", nil},
		{"kind: blackhole, for: 3s, only: requests", "+breaker_open -lease_lost open=1@7-8 healed", nil},
		{"kind: blackhole, for: 3s, only: replies", "+breaker_open +lease_lost open=1@7-8 healed", nil},
		{"kind: blackhole, for: 3s, procs: 3", "+breaker_open open=0.3@7-8 healed", nil},
		{"kind: cut, for: 3s", "+breaker_open -lease_lost open=1@7-8 healed", nil},
		{"kind: lose, for: 3s", "+breaker_open +lease_lost open=1@7-8 healed", nil},
		{"kind: lose, for: 4s, chance: 3%", "+lease_lost open=0@5-9", nil},
		{"kind: latency, delay: 5ms, for: 3s", "-breaker_open open=0@0-12", func(r *measure.Report) bool {
			return mean(r, r.Series.MaxUs, 5.1, 8) > 5000 && mean(r, r.Series.MaxUs, 3, 5) < 5000
		}},
		{"kind: latency, delay: 80ms, for: 3s", "-breaker_open open=0@0-12 healed", nil},
		{"kind: latency, delay: 2s, for: 3s", "+breaker_open open=1@7-8", nil},
		{"kind: flap, up: 500ms, down: 1s, for: 4500ms", "+breaker_open +breaker_closed +fallback healed", nil},
		{"kind: flush", "+state_loss -breaker_open", nil},
		{"kind: evict, keys: 1", "+state_loss -breaker_open", nil},
		{"kind: scriptflush", "+script_sent -breaker_open", nil},
		{"kind: failover, lose: 1s, for: 2s", "+breaker_open +fallback healed -state_loss", nil}, // what was there is there
		{"kind: clock, by: 10m", "+clock_step", func(r *measure.Report) bool { // a burst, once
			more := 3 * (mean(r, r.Series.Admitted, 5, 8) - 200)
			return more > 30 && more < 210 && mean(r, r.Series.Admitted, 8, 12) < 215
		}},
		{"kind: clock, by: -10m", "+clock_step", func(r *measure.Report) bool { // no more, and no stall
			return r.Metrics.OverAdmission < 1 && mean(r, r.Series.Admitted, 7, 12) > 180
		}},
		{"kind: crash, procs: 3", "died=3 processes=7", nil},
		{"kind: crash, procs: 3, restart: 1s", "died=3 +process_joined processes=10", nil},
		{"kind: crashloop, procs: 2, every: 500ms, for: 3s", "died=12 processes=10", nil},
		{"kind: pause, procs: 3, for: 2s", "-process_died", func(r *measure.Report) bool { // seven are asked for less
			return mean(r, r.Series.Offered, 5.1, 7) < 250 && mean(r, r.Series.Offered, 8, 12) > 270
		}},
		{"kind: deploy, every: 200ms", "died=10 -lease_lost", func(r *measure.Report) bool { return r.Metrics.OverAdmission < 0.1 }},
		{"kind: scale, n: 15", "processes=15", nil},
		{"kind: scale, n: 4", "processes=4 died=6", nil},
		{"kind: flood, keys: 1000, for: 2s", "", func(r *measure.Report) bool {
			more := mean(r, r.Series.Offered, 5, 7) - mean(r, r.Series.Offered, 2, 5)
			// A call for each: Redis has to be asked for a key that nobody has seen.
			calls := mean(r, r.Series.Calls, 5, 7) - mean(r, r.Series.Calls, 2, 5)
			return more > 400 && more < 600 && calls > 350
		}},
	} {
		t.Run(c.fault, func(t *testing.T) {
			faults := ""
			if c.fault != "" {
				faults = "{at: 5s, " + c.fault + "}"
			}
			if strings.Contains(c.fault, "flap") {
				faults = strings.Replace(faults, "5s", "4s", 1)
			}
			r := rehearse(t, stage+"faults: ["+faults+"]\n", nil)
			for word := range strings.FieldsSeq(c.words) {
				if got := notSo(r, word); got != "" {
					t.Errorf("not so: %s, but %s", word, got)
				}
			}
			if r.Metrics.Unaccounted != 0 || len(r.Faults) != min(len(c.fault), 1) || c.is != nil && !c.is(r) {
				t.Errorf("%d unaccounted, %d faults, or not as it must be", r.Metrics.Unaccounted, len(r.Faults))
			}
			if t.Failed() {
				t.Logf("\n%v", r)
			}
		})
	}
}

// A network that flaps is down first, and up and down in turn until the fault ends.
func TestFlap(t *testing.T) {
	// Without shares and leases nothing is admitted but by a call that got through.
	const flap = "faults: [{at: 4s, kind: flap, up: 1s, down: 500ms, for: 3500ms}]\n"
	r := rehearse(t, strings.Replace(stage, "n: 10", "n: 10, mode: closed, size: -1", 1)+flap, nil)
	for _, c := range []struct {
		from, to float64
		up       bool
	}{
		{3, 4, true},
		{4.1, 4.5, false},
		{4.6, 5.5, true},
		{5.6, 6, false},
		{6.1, 7, true},
		{7.1, 7.5, false},
		{7.6, 12, true},
	} {
		if admitted := mean(r, r.Series.Admitted, c.from, c.to); (admitted > 0) != c.up {
			t.Errorf("from %g s to %g s %g tokens per second were admitted", c.from, c.to, admitted)
		}
	}
}
