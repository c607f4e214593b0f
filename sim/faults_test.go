package sim_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
)

// stage is what every fault is put on: ten processes that share one key, asked for half more than its limit.
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

// Each kind of fault does what it says, and nothing is left of it.
func TestEachFault(t *testing.T) {
	type check struct {
		what string
		ok   func(r *measure.Report) bool
	}
	happens := func(names ...string) (all []check) {
		for _, n := range names {
			all = append(all, check{n, func(r *measure.Report) bool { return count(r, n) > 0 }})
		}
		return all
	}
	never := func(names ...string) (all []check) {
		for _, n := range names {
			all = append(all, check{"no " + n, func(r *measure.Report) bool { return count(r, n) == 0 }})
		}
		return all
	}
	all := func(parts ...[]check) (all []check) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	open := func(share, from, to float64) []check {
		return []check{{fmt.Sprintf("%g of the breakers open", share), func(r *measure.Report) bool {
			o := mean(r, r.Series.Open, from, to)
			return o > share-0.05 && o < share+0.05
		}}}
	}
	is := func(what string, ok func(r *measure.Report) bool) []check { return []check{{what, ok}} }
	healed := open(0, 10, 12)

	for _, c := range []struct {
		fault  string
		checks []check
	}{
		{"", all(never("breaker_open", "lease_lost", "fallback", "state_loss", "clock_step", "process_died",
			"late_call"), open(0, 0, 12),
			is("exact", func(r *measure.Report) bool { return r.Metrics.OverAdmission < 0.1 }),
			is("used", func(r *measure.Report) bool { return r.Metrics.Utilisation > 0.97 }))},
		{"{at: 5s, kind: kill, for: 3s}", all(happens("breaker_open", "breaker_closed", "fallback", "probe_failed",
			"script_sent"),
			open(1, 7, 8), healed)},
		{"{at: 5s, kind: freeze, for: 3s}", all(happens("breaker_open", "breaker_closed", "fallback"), never("lease_lost"),
			open(1, 7, 8), healed)},
		{"{at: 5s, kind: refuse, error: LOADING, for: 3s}", all(happens("breaker_open", "breaker_closed", "fallback"),
			never("lease_lost"), open(1, 7, 8), healed)},
		{"{at: 5s, kind: refuse, error: NOAUTH, for: 3s}", all(happens("breaker_open", "fallback"), open(1, 7, 8), healed)},
		{"{at: 5s, kind: refuse, error: WRONGTYPE, for: 3s}", all(never("breaker_open"), open(0, 0, 12))},
		// late calls: who waited for a connection
		{"{at: 5s, kind: blackhole, for: 3s}", all(happens("breaker_open", "breaker_closed", "fallback"),
			never("lease_lost"),
			open(1, 7, 8), healed)},
		{"{at: 5s, kind: blackhole, for: 3s, only: requests}", all(happens("breaker_open"), never("lease_lost"), open(1,
			7, 8),
			healed)},
		{"{at: 5s, kind: blackhole, for: 3s, only: replies}", all(happens("breaker_open", "lease_lost"), open(1, 7, 8),
			healed)},
		{"{at: 5s, kind: blackhole, for: 3s, procs: 3}", all(happens("breaker_open"), open(0.3, 7, 8), healed)},
		{"{at: 5s, kind: cut, for: 3s}", all(happens("breaker_open"), never("lease_lost"), open(1, 7, 8), healed)},
		{"{at: 5s, kind: lose, for: 3s}", all(happens("breaker_open", "lease_lost"), open(1, 7, 8), healed)},
		{"{at: 5s, kind: lose, for: 4s, chance: 3%}", all(happens("lease_lost"), open(0, 5, 9))},
		{"{at: 5s, kind: latency, delay: 5ms, for: 3s}", all(never("breaker_open"), open(0, 0, 12),
			is("slow", func(r *measure.Report) bool {
				return mean(r, r.Series.MaxUs, 5.1, 8) > 5000 && mean(r, r.Series.MaxUs, 3, 5) < 5000
			}))},
		{"{at: 5s, kind: latency, delay: 80ms, for: 3s}", all(never("breaker_open"), open(0, 0, 12), healed)},
		{"{at: 5s, kind: latency, delay: 2s, for: 3s}", all(happens("breaker_open"), open(1, 7, 8))},
		{"{at: 4s, kind: flap, up: 500ms, down: 1s, for: 4500ms}", all(happens("breaker_open", "breaker_closed",
			"fallback"), healed)},
		{"{at: 5s, kind: flush}", all(happens("state_loss"), never("breaker_open"))},
		{"{at: 5s, kind: evict, keys: 1}", all(happens("state_loss"), never("breaker_open"))},
		{"{at: 5s, kind: scriptflush}", all(happens("script_sent"), never("breaker_open"))},
		{"{at: 5s, kind: failover, lose: 1s, for: 2s}", all(happens("breaker_open", "fallback"), healed,
			is("what was there is there", func(r *measure.Report) bool { return count(r, "state_loss") == 0 }))},
		{"{at: 5s, kind: clock, by: 10m}", all(happens("clock_step"), is("a burst, once", func(r *measure.Report) bool {
			more := 3 * (mean(r, r.Series.Admitted, 5, 8) - 200)
			return more > 30 && more < 210 && mean(r, r.Series.Admitted, 8, 12) < 215
		}))},
		{"{at: 5s, kind: clock, by: -10m}", all(happens("clock_step"),
			is("no more", func(r *measure.Report) bool { return r.Metrics.OverAdmission < 1 }),
			is("no stall", func(r *measure.Report) bool { return mean(r, r.Series.Admitted, 7, 12) > 180 }))},
		{"{at: 5s, kind: crash, procs: 3}", all(happens("process_died"),
			is("seven", func(r *measure.Report) bool { return processes(r) == 7 }))},
		{"{at: 5s, kind: crash, procs: 3, restart: 1s}", all(happens("process_died", "process_joined"),
			is("ten", func(r *measure.Report) bool { return processes(r) == 10 }))},
		{
			"{at: 5s, kind: crashloop, procs: 2, every: 500ms, for: 3s}",
			all(is("twelve died", func(r *measure.Report) bool { return count(r, "process_died") == 12 }),
				is("ten", func(r *measure.Report) bool { return processes(r) == 10 })),
		},
		{"{at: 5s, kind: pause, procs: 3, for: 2s}", all(never("process_died"),
			is("less is asked of seven", func(r *measure.Report) bool {
				return mean(r, r.Series.Offered, 5.1, 7) < 250 && mean(r, r.Series.Offered, 8, 12) > 270
			}))},
		{"{at: 5s, kind: deploy, every: 200ms}", all(is("ten died",
			func(r *measure.Report) bool { return count(r, "process_died") == 10 }),
			is("nothing is lost", func(r *measure.Report) bool {
				return count(r, "lease_lost") == 0 && r.Metrics.OverAdmission < 0.1
			}))},
		{"{at: 5s, kind: scale, n: 15}", is("fifteen", func(r *measure.Report) bool { return processes(r) == 15 })},
		{"{at: 5s, kind: scale, n: 4}", is("four", func(r *measure.Report) bool {
			return processes(r) == 4 &&
				count(r, "process_died") == 6
		})},
		{"{at: 5s, kind: flood, keys: 1000, for: 2s}", is("so many keys", func(r *measure.Report) bool {
			more := mean(r, r.Series.Offered, 5, 7) - mean(r, r.Series.Offered, 2, 5)
			// A call for each: Redis has to be asked for a key that nobody has seen.
			calls := mean(r, r.Series.Calls, 5, 7) - mean(r, r.Series.Calls, 2, 5)
			return more > 400 && more < 600 && calls > 350
		})},
	} {
		t.Run(c.fault, func(t *testing.T) {
			r := rehearse(t, stage+"faults: ["+c.fault+"]\n", nil)
			for _, ch := range all(c.checks, is("nothing out of nothing", func(r *measure.Report) bool {
				return r.Metrics.Unaccounted == 0
			}), is("a fault", func(r *measure.Report) bool { return len(r.Faults) == min(len(c.fault), 1) })) {
				if !ch.ok(r) {
					t.Errorf("not so: %s", ch.what)
				}
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
