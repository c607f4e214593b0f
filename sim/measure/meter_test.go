package measure_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestTokensByPhase(t *testing.T) {
	m := measure.New(made())
	ask(m, 1, 0, 0, "k", 15, 10)
	ask(m, 10*s-1, 0, 0, "k", 3, 3)
	ask(m, 10*s, 1, 0, "k", 12, 9) // the ideal bucket has 7 left, and a bit
	ask(m, 20*s, 0, 0, "k", 5, 0)
	ask(m, 31*s, 0, 0, "k", 1, 1) // after the end: it belongs to the last phase
	r := m.Report()
	type tokens struct{ offered, admitted, ideal int64 }
	for name, w := range map[string]tokens{"before": {18, 13, 13}, "during": {12, 9, 7}, "after": {6, 1, 6}} {
		p := phase(t, r, name)
		want(t, name, tokens{p.Offered, p.Admitted, p.Ideal}, w)
	}
	want(t, "all", tokens{r.Metrics.Offered, r.Metrics.Admitted, r.Metrics.Ideal}, tokens{36, 23, 26})
	near(t, "utilisation", r.Metrics.Utilisation, 23.0/26)
	want(t, "phases", len(r.Phases), 3)
	near(t, "during ends", r.Phases[1].ToS, 20)
	near(t, "after ends", r.Phases[2].ToS, 30)
}

// What comes before the warm-up is in no part, but the buckets have seen it.
func TestWarmUp(t *testing.T) {
	m := measure.New(made(func(x *scenario.Scenario) { x.WarmUp = scenario.Duration(5 * s) }))
	ask(m, 5*s-1, 0, 0, "k", 10, 10)
	ask(m, 5*s, 0, 0, "k", 10, 10) // a nanosecond later the ideal bucket is empty
	r := m.Report()
	want(t, "offered", r.Metrics.Offered, 10)
	want(t, "ideal", r.Metrics.Ideal, 0)
	near(t, "over: an interval may begin before", r.Metrics.OverAdmission, 10-10e-9)
	near(t, "utilisation of nothing", r.Metrics.Utilisation, -1)
	near(t, "before begins", r.Phases[0].FromS, 5)
	near(t, "the series has all", r.Series.Offered[49], 100)
	near(t, "the series has all", r.Series.Offered[50], 100)

	m = measure.New(made(func(x *scenario.Scenario) { x.WarmUp = scenario.Duration(5 * s) }))
	ask(m, 1*s, 0, 0, "k", 30, 30) // 20 beyond, before the warm-up is over
	ask(m, 6*s, 0, 0, "k", 15, 15)
	want(t, "over: an interval that ends before does not count", m.Report().Metrics.OverAdmission, 5)
}

// A decision counts where it falls for over-admission, and where the request was made for all else.
func TestLateDecision(t *testing.T) {
	m := measure.New(made())
	ask(m, 1*s, 0, 0, "k", 1, 1)
	late := m.Asked(10*s-ms, 0, 0, "k", 11, common)
	m.Decided(10*s+ms, late, granted)
	r := m.Report()
	want(t, "before, admitted", phase(t, r, "before").Admitted, 12)
	want(t, "before, over", phase(t, r, "before").OverAdmission, 0)
	want(t, "during, over", phase(t, r, "during").OverAdmission, 1)
	want(t, "during, admitted", phase(t, r, "during").Admitted, 0)
	near(t, "before, longest", phase(t, r, "before").DecideMax, 0.002)
	near(t, "during, longest", phase(t, r, "during").DecideMax, -1)
}

func TestShortfall(t *testing.T) {
	m := measure.New(made())
	ask(m, 1*s, 0, 0, "k", 10, 6)       // 4 short
	ask(m, 1*s+999*ms, 0, 0, "k", 9, 9) // the same second: the ideal admits 9, so it stays 4
	ask(m, 3*s, 0, 0, "k", 10, 10)      // none
	ask(m, 5*s, 0, 0, "k", 14, 13)      // 3 too many do not make up for another second
	ask(m, 7*s+ms, 0, 0, "k", 10, 6)    // 4 short, but these 4, which the ideal has no tokens for, are in the same second
	ask(m, 7*s+50*ms, 0, 0, "k", 4, 4)
	ask(m, 15*s, 0, 0, "k", 10, 0) // 10 short, during
	r := m.Report()
	near(t, "before", phase(t, r, "before").Shortfall, 4.0/49)
	near(t, "during", phase(t, r, "during").Shortfall, 1)
	near(t, "after: nothing was asked for", phase(t, r, "after").Shortfall, -1)
	near(t, "all", r.Metrics.Shortfall, 14.0/59)

	m = measure.New(made(twoLimits)) // one limit's surplus does not make up for another's shortfall
	ask(m, 1*s, 0, 0, "k", 12, 12)
	ask(m, 1*s, 0, 1, "k", 2, 0)
	near(t, "of two limits", m.Report().Metrics.Shortfall, 2.0/12)
}

func TestDeniedWithin(t *testing.T) {
	m := measure.New(made())
	ask(m, 1*s, 0, 0, "k", 20, 7) // 10 within, 3 of them refused
	left := m.Asked(3*s, 0, 0, "k", 1, common)
	m.Decided(3*s, left, tiered.Decision{Reason: tiered.Canceled})
	r := m.Report()
	near(t, "denied", r.Metrics.DeniedWithin, 3.0/11)
	want(t, "refused", count(t, r, "refused"), 13)
	want(t, "canceled", count(t, r, "canceled"), 1)
}

func TestWaitedAndTimes(t *testing.T) {
	m := measure.New(made())
	took := func(at, d time.Duration, dec tiered.Decision) {
		m.Decided(at+d, m.Asked(at, 0, 0, "k", 1, common), dec)
	}
	for i := range 97 {
		took(time.Duration(i)*10*ms+1, 0, granted)
	}
	took(2*s, 300*time.Microsecond, granted)
	took(3*s, 100*time.Microsecond, granted)
	took(4*s, 20*ms, tiered.Decision{Reason: tiered.FallbackSpent, Tier: tiered.Failover})
	r := m.Report()
	if p := r.Metrics.DecideP99; p < 297e-6 || p > 303e-6 {
		t.Errorf("p99: %v, want 300 µs within 1 %%", p)
	}
	near(t, "max", r.Metrics.DecideMax, 0.02)
	want(t, "waited", count(t, r, "waited"), 2)
	took(5*s, 0, tiered.Decision{Allowed: true, Tier: tiered.Remote})
	want(t, "waited, by Redis", count(t, m.Report(), "waited"), 3)
}

func TestAloneAndCalls(t *testing.T) {
	m := measure.New(made())
	for range 4 {
		m.Decided(12*s, m.Asked(12*s, 0, 0, "k", 1, common), shared)
	}
	m.Decided(13*s, m.Asked(13*s, 0, 0, "k", 3, common), tiered.Decision{Allowed: true, Reason: tiered.Open})
	ask(m, 14*s, 0, 0, "k", 3, 3)
	m.Called(10*s, 0, 2)
	m.Called(15*s, 1, 3)
	m.Called(20*s, 1, 7)
	r := m.Report()
	p := phase(t, r, "during")
	want(t, "alone", p.Alone, 7)
	near(t, "calls", p.RedisCalls, 0.5)
	near(t, "calls of all", r.Metrics.RedisCalls, 12/(30*s-1).Seconds())
	near(t, "calls after", phase(t, r, "after").RedisCalls, 0.7)
	near(t, "series", r.Series.Alone[120], 40)
	near(t, "series", r.Series.Calls[200], 70)
}

// Keys at rest are forgotten, and the figures are the same. Those of random streams are too: see
// stream.play.
func TestForgetting(t *testing.T) {
	m := measure.New(made(func(x *scenario.Scenario) {
		x.Limits[0] = scenario.Limit{Name: "api", Limit: tiered.PerSecond(1).WithBurst(3)}
	}))
	const keys = 12_000
	for i := range keys {
		at := time.Duration(i)*ms + 1
		ask(m, at, 0, 0, name(i), 1, 1)
		if i == 4_000 {
			ask(m, at, 0, 0, name(i), 5, 5) // 3 over, to be remembered when the key is gone
		}
	}
	if n := m.Keys(); n > keys*2/3 {
		t.Errorf("%d keys are kept, though a key is at rest after a second or six", n)
	}
	r := m.Report()
	want(t, "over", r.Metrics.OverAdmission, 3)
	want(t, "admitted", r.Metrics.Admitted, keys+5)

	m = measure.New(made(func(x *scenario.Scenario) { x.Limits[0].Limit = tiered.PerSecond(0).WithBurst(2) }))
	ask(m, 1*s, 0, 0, "k", 1, 1)
	m.Forget(1000 * time.Hour)
	want(t, "kept without a rate", m.Keys(), 1)

	m = measure.New(made())
	late := m.Asked(1*s, 0, 0, "k", 6, common)
	m.Forget(15 * s)
	m.Decided(15*s, late, granted)
	m.Forget(15 * s)
	ask(m, 15*s, 0, 0, "k", 6, 6)
	want(t, "over, with a request that was under way", m.Report().Metrics.OverAdmission, 2)

	m = measure.New(made())
	ask(m, 1*s, 0, 0, "k", 10, 0)
	m.Forget(2*s - ms)
	want(t, "kept while its bucket is not full", m.Keys(), 1)
	m.Forget(2*s + ms)
	want(t, "kept when it is", m.Keys(), 0)
}

func TestTrace(t *testing.T) {
	run := func(change func(m *measure.Meter)) string {
		m := measure.New(made())
		m.Joined(0, 0)
		ask(m, 1*s, 0, 0, "a", 1, 1)
		m.Called(2*s, 0, 1)
		change(m)
		return m.Report().Unseed
	}
	same := run(func(m *measure.Meter) { ask(m, 3*s, 0, 0, "a", 1, 1); ask(m, 3*s, 1, 0, "b", 1, 0) })
	want(t, "the order of one instant",
		run(func(m *measure.Meter) { ask(m, 3*s, 1, 0, "b", 1, 0); ask(m, 3*s, 0, 0, "a", 1, 1) }), same)
	seen := map[string]bool{same: true}
	for what, change := range map[string]func(m *measure.Meter){
		"nothing": func(*measure.Meter) {},
		"time":    func(m *measure.Meter) { ask(m, 3*s+1, 0, 0, "a", 1, 1) },
		"process": func(m *measure.Meter) { ask(m, 3*s, 1, 0, "a", 1, 1) },
		"key":     func(m *measure.Meter) { ask(m, 3*s, 0, 0, "c", 1, 1) },
		"reason":  func(m *measure.Meter) { ask(m, 3*s, 0, 0, "a", 1, 0) },
		"cost":    func(m *measure.Meter) { m.Decided(3*s, m.Asked(3*s, 0, 0, "a", 2, common), granted) },
		"called":  func(m *measure.Meter) { m.Called(3*s, 0, 1) },
		"granted": func(m *measure.Meter) { m.Granted(3*s, 0, 1) },
		"breaker": func(m *measure.Meter) { m.Breaker(3*s, 0, "open") },
		"probing": func(m *measure.Meter) { m.Breaker(3*s, 0, "probing") },
	} {
		u := run(change)
		if seen[u] || len(u) != 16 {
			t.Errorf("%s does not show in the unseed %s", what, u)
		}
		seen[u] = true
	}
}
