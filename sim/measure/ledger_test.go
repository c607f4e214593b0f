package measure_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// count is how often something happened.
func count(t *testing.T, r *measure.Report, name string) int64 {
	t.Helper()
	for _, h := range r.Sometimes {
		if h.Name == name {
			return h.Count
		}
	}
	t.Fatalf("no happening %s", name)
	return 0
}

// none has counted nothing.
var none tiered.PolicyStats

// Each way in which tokens can come from nowhere, or get out of sight, is told.
func TestUnaccounted(t *testing.T) {
	for _, c := range []struct {
		name           string
		redis          int64
		callers, alone int // of Granted and of Fallback
		stats          tiered.PolicyStats
		want, lost     int64
	}{
		{"nothing", 30, 12, 0, leased(30, 12, 0, 18), 0, 0},
		{"more went out than came in", 30, 12, 0, leased(30, 12, 20, 2), 4, 0},
		{"more was heard of than granted", 30, 12, 0, leased(33, 12, 0, 21), 3, 0},
		{"callers saw more than was spent", 30, 14, 0, leased(30, 12, 0, 18), 2, 0},
		{"callers saw less: one left", 30, 11, 0, leased(30, 12, 0, 18), 0, 0},
		{"what is lost is no answer to it", 35, 12, 0, leased(30, 12, 0, 19), 1, 5},
		{"all counted", 0, 0, 10, alone(none, 10, 0), 0, 0},
		{"counted in two modes", 0, 0, 10, alone(none, 4, 6), 0, 0},
		{"not all counted", 0, 0, 10, alone(none, 7, 0), 3, 0},
		{"more counted", 0, 0, 10, alone(none, 12, 0), 0, 0},
		{"both", 30, 14, 10, alone(leased(30, 12, 0, 18), 7, 0), 5, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := measure.New(made())
			if c.redis > 0 {
				m.Granted(1*s, 0, c.redis)
			}
			ask(m, 2*s, 0, 0, "k", c.callers, c.callers)
			for range c.alone {
				m.Decided(3*s, m.Asked(3*s, 0, 0, "k", 1, common), shared)
			}
			m.Sample(29*s, 0, stats("api", c.stats), true)
			r := m.Report()
			want(t, "unaccounted", r.Metrics.Unaccounted, c.want)
			want(t, "of a limit", r.Limits["api"].Unaccounted, -1)
			want(t, "lost", count(t, r, "lease_lost"), c.lost)
		})
	}
}

// It is of the run, in each part. What a process has in surplus is not another's loss.
func TestUnaccountedByProcess(t *testing.T) {
	m := measure.New(made())
	for p, heard := range []int64{25, 15} {
		m.Granted(1*s, p, 20)
		m.Sample(29*s, p, stats("api", leased(heard, 0, 0, heard)), true)
	}
	r := m.Report()
	want(t, "unaccounted", r.Metrics.Unaccounted, 5)
	want(t, "before", phase(t, r, "before").Unaccounted, 5)
	want(t, "lost", count(t, r, "lease_lost"), 5)
}

func TestLostAndBurnt(t *testing.T) {
	m := measure.New(made())
	m.Joined(0, 0)
	m.Joined(0, 1)
	m.Granted(9*s, 0, 30)
	m.Granted(9*s, 1, 20)
	ask(m, 9*s, 0, 0, "k", 12, 12)
	m.Granted(12*s, 0, 7)                                       // lost
	m.Sample(15*s, 1, stats("api", leased(20, 0, 0, 20)), true) // it crashed, with 20
	m.Died(15*s+1, 1)
	m.Sample(30*s, 0, stats("api", leased(30, 12, 8, 0)), true)
	r := m.Report()
	want(t, "lost", count(t, r, "lease_lost"), 7)
	want(t, "burnt", count(t, r, "lease_burnt"), 30)
	want(t, "unaccounted", r.Metrics.Unaccounted, 0)
}

func TestHappenings(t *testing.T) {
	m := measure.New(made(func(x *scenario.Scenario) {
		x.WarmUp = scenario.Duration(2 * s)
		x.Sometimes = []string{"late_call", "stale_reply"}
	}))
	sample := func(at time.Duration, evictions uint64, losses int64) {
		var a, b tiered.NodeStats
		a.Faults.StateLosses, b.Faults.StateLosses = losses, 1
		nodes := map[string]tiered.NodeStats{"a": a, "b": b}
		m.Sample(at, 0, tiered.Stats{Evictions: evictions, Nodes: nodes}, false)
	}
	sample(1*s, 6, 1)
	sample(2*s+10*ms, 7, 3) // a bit late
	sample(5*s, 9, 3)
	sample(25*s, 9, 8)
	m.Happened(1*s, "stale_reply")
	m.Happened(2*s, "late_call")
	r := m.Report()
	want(t, "happenings", len(r.Sometimes), len(scenario.Happenings))
	for name, w := range map[string]int64{
		"evicted_locally": 2, "state_loss": 5, "late_call": 1, "stale_reply": 0, "clock_step": 0,
	} {
		want(t, name, count(t, r, name), w)
	}
	want(t, "passed: no stale reply since the warm-up", r.Passed, false)
}
