package measure

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestLedger(t *testing.T) {
	m := New(made())
	m.Joined(0, 0)
	m.Joined(0, 1)
	m.Granted(9*s, 0, 30)
	m.Granted(9*s, 1, 20)
	ask(m, 9*s, 0, 0, "k", 12, 12)
	m.Sample(10*s+300_000, 0, stats("api", tiered.PolicyStats{Granted: 30, Spent: 12, Held: 18}), false) // a bit late
	m.Sample(10*s, 1, stats("api", tiered.PolicyStats{Granted: 20, Held: 20}), false)
	m.Granted(12*s, 0, 7)                                                            // lost
	m.Sample(15*s, 1, stats("api", tiered.PolicyStats{Granted: 20, Held: 20}), true) // it crashed, with 20
	m.Died(15*s+1, 1)
	m.Sample(20*s, 0, stats("api", tiered.PolicyStats{Granted: 30, Spent: 12, Returned: 8, Burnt: 10}), false)
	m.Sample(30*s+ms, 0, stats("api", tiered.PolicyStats{Granted: 30, Spent: 12, Returned: 8, Burnt: 10}), true)
	r := m.Report(30 * s)
	want(t, "ledger", r.Ledger, Ledger{Granted: 57, Spent: 12, Returned: 8, Burnt: 30, Held: 0, Lost: 7})
	type tokens struct{ lost, burnt, duplicated, uncounted int64 }
	of := func(x Metrics) tokens { return tokens{x.Lost, x.Burnt, x.Duplicated, x.Uncounted} }
	want(t, "all", of(r.Metrics), tokens{7, 30, 0, 0})
	want(t, "before", of(phase(t, r, "before")), tokens{0, 0, 0, 0})
	want(t, "during", of(phase(t, r, "during")), tokens{7, 30, 0, 0})
	want(t, "after", of(phase(t, r, "after")), tokens{0, 0, 0, 0})
	want(t, "of a limit", of(r.Limits["api"]), tokens{-1, 30, 0, 0})
	held := func(step int, granted, spent, returned, burnt, held int64) {
		t.Helper()
		x := &r.Series
		want(t, "series", [5]int64{x.Granted[step], x.Spent[step], x.Returned[step], x.Burnt[step], x.Held[step]}, [5]int64{granted, spent, returned, burnt, held})
	}
	held(98, 0, 0, 0, 0, 0)
	held(99, 50, 12, 0, 0, 38)
	held(149, 50, 12, 0, 20, 18)
	held(199, 50, 12, 8, 30, 0)
	held(299, 50, 12, 8, 30, 0)
}

// Each way in which tokens can come from nowhere is told.
func TestDuplicated(t *testing.T) {
	for _, c := range []struct {
		name             string
		redis            int64
		callers          int // of Granted
		stats            tiered.PolicyStats
		last             bool
		all, limit, lost int64
	}{
		{"none", 30, 12, tiered.PolicyStats{Granted: 30, Spent: 12, Held: 18}, true, 0, 0, 0},
		{"more went out than came in", 30, 12, tiered.PolicyStats{Granted: 30, Spent: 12, Returned: 20, Held: 2}, true, 4, 4, 0},
		{"more was heard of than granted", 30, 12, tiered.PolicyStats{Granted: 33, Spent: 12, Held: 21}, true, 3, 0, 0},
		{"callers saw more than was spent", 30, 14, tiered.PolicyStats{Granted: 30, Spent: 12, Held: 18}, true, 2, 2, 0},
		{"callers are not compared before the end", 30, 14, tiered.PolicyStats{Granted: 30, Spent: 12, Held: 18}, false, 0, 0, 0},
		{"callers saw less: one left", 30, 11, tiered.PolicyStats{Granted: 30, Spent: 12, Held: 18}, true, 0, 0, 0},
		{"what is lost is not what came from nowhere", 35, 12, tiered.PolicyStats{Granted: 30, Spent: 12, Held: 19}, true, 1, 1, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := New(made())
			m.Granted(1*s, 0, c.redis)
			ask(m, 2*s, 0, 0, "k", c.callers, c.callers)
			m.Sample(29*s, 0, stats("api", c.stats), c.last)
			r := m.Report(30 * s)
			want(t, "all", r.Metrics.Duplicated, c.all)
			want(t, "of the limit", r.Limits["api"].Duplicated, c.limit)
			want(t, "lost", r.Metrics.Lost, c.lost)
		})
	}
}

// One process' surplus is not another's loss.
func TestDuplicatedByProcess(t *testing.T) {
	m := New(made())
	for p, heard := range []int64{25, 15} {
		m.Granted(1*s, p, 20)
		m.Sample(29*s, p, stats("api", tiered.PolicyStats{Granted: heard, Held: heard}), true)
	}
	r := m.Report(30 * s)
	want(t, "duplicated", r.Metrics.Duplicated, 5)
	want(t, "lost", r.Metrics.Lost, 5)
}

func TestUncounted(t *testing.T) {
	run := func(shared_, open int64, last bool) int64 {
		m := New(made())
		for range 5 {
			m.Decided(2*s, m.Asked(2*s, 0, 0, "k", 2), shared)
		}
		m.Sample(29*s, 0, stats("api", tiered.PolicyStats{Shared: shared_, Open: open}), last)
		x := m.Report(30 * s).Metrics
		want(t, "unaccounted is the sum", x.Unaccounted, x.Uncounted)
		return x.Uncounted
	}
	want(t, "all of it", run(10, 0, true), 0)
	want(t, "in two modes", run(4, 6, true), 0)
	want(t, "not all of it", run(7, 0, true), 3)
	want(t, "more of it", run(12, 0, true), 0)
	want(t, "not known before the end", run(7, 0, false), -1)
}

// A new process of the same number begins with nothing.
func TestReplacedProcess(t *testing.T) {
	m := New(made())
	m.Joined(0, 0)
	m.Sample(5*s, 0, stats("api", tiered.PolicyStats{Granted: 10, Spent: 3, Held: 7}), false) // and is killed unseen
	m.Died(6*s, 0)
	m.Joined(7*s, 0)
	m.Sample(8*s, 0, stats("api", tiered.PolicyStats{Granted: 4, Held: 4}), false)
	r := m.Report(30 * s)
	want(t, "ledger", r.Ledger, Ledger{Granted: 14, Spent: 3, Burnt: 7, Held: 4, Lost: -1})

	m = New(made())
	m.Sample(5*s, 0, stats("api", tiered.PolicyStats{Granted: 10, Held: 10}), false)
	m.Died(6*s, 0) // and nobody comes, but its last figures
	m.Sample(6*s, 0, stats("api", tiered.PolicyStats{Granted: 12, Held: 11, Spent: 1}), true)
	want(t, "ledger", m.Report(30*s).Ledger, Ledger{Granted: 12, Spent: 1, Burnt: 11, Lost: -1})

	m = New(made())
	m.Joined(0, 0)
	m.Sample(30*s, 0, stats("api", tiered.PolicyStats{Granted: 10, Held: 10}), true)
	want(t, "who lives at the end holds", m.Report(30*s).Ledger, Ledger{Granted: 10, Held: 10, Lost: -1})
}

// What nobody told of is not known.
func TestUntold(t *testing.T) {
	r := New(made()).Report(30 * s)
	x := r.Metrics
	want(t, "tokens", [4]int64{x.Lost, x.Burnt, x.Duplicated, x.Uncounted}, [4]int64{-1, -1, -1, -1})
	want(t, "keys", x.Keys, -1)
	m := New(made())
	m.Sample(1*s, 0, stats("api", tiered.PolicyStats{Granted: 10, Held: 10}), true)
	x = m.Report(30 * s).Metrics
	want(t, "lost, when grants are not seen", x.Lost, -1)
	want(t, "duplicated", x.Duplicated, 0)
}

func TestKeysAndCounts(t *testing.T) {
	m := New(made(func(x *scenario.Scenario) {
		x.WarmUp = scenario.Duration(2 * s)
		x.Sometimes = []string{"late_call", "stale_reply"}
	}))
	sample := func(at, keys int, evictions uint64, n tiered.NodeStats) {
		m.Sample(time.Duration(at)*s, 0, &tiered.Stats{Keys: keys, Evictions: evictions, Nodes: map[string]tiered.NodeStats{"a": n, "b": {StateLosses: 1}}}, false)
	}
	sample(1, 90, 7, tiered.NodeStats{StaleReplies: 3})
	sample(5, 50, 9, tiered.NodeStats{StaleReplies: 3})
	sample(15, 80, 9, tiered.NodeStats{LateCalls: 2, StaleReplies: 3})
	sample(25, 60, 9, tiered.NodeStats{LateCalls: 5, StaleReplies: 3})
	m.Happened("clock_step")
	m.Happened("late_call")      // Stats have more of them
	m.Happened("process_joined") // the meter sees that by itself
	m.Happened("short_grant")
	m.Happened("never heard of")
	r := m.Report(30 * s)
	want(t, "all: the warm-up is not in it", r.Metrics.Keys, 80)
	want(t, "before", phase(t, r, "before").Keys, 50)
	want(t, "during", phase(t, r, "during").Keys, 80)
	want(t, "after", phase(t, r, "after").Keys, 60)
	got := map[string]Happening{}
	for _, h := range r.Sometimes {
		got[h.Name] = h
	}
	want(t, "happenings", len(r.Sometimes), len(scenario.Happenings)+1)
	for _, w := range []Happening{
		{Name: "evicted_locally", Count: 2, Wanted: false},
		{Name: "late_call", Count: 5, Wanted: true},
		{Name: "stale_reply", Count: 0, Wanted: true},
		{Name: "state_loss", Count: 0, Wanted: false},
		{Name: "clock_step", Count: 1, Wanted: false},
		{Name: "short_grant", Count: 1, Wanted: false},
		{Name: "process_joined", Count: 0, Wanted: false},
		{Name: "never heard of", Count: 1, Wanted: false},
	} {
		want(t, w.Name, got[w.Name], w)
	}
	want(t, "passed: no stale reply since the warm-up", r.Passed, false)
}
