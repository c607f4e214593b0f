package measure_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

const (
	s  = time.Second
	ms = time.Millisecond
)

// made is a made-up scenario: ten tokens per second with bursts of ten, and a black hole from 10 s
// to 20 s of 30. The warm-up is a nanosecond, so that the tables may begin with the run.
func made(changes ...func(*scenario.Scenario)) *scenario.Scenario {
	x := &scenario.Scenario{
		Name:   "made up",
		Limits: []scenario.Limit{{Name: "api", Limit: tiered.PerSecond(10)}},
		Fleet:  scenario.Fleet{N: 2},
		Faults: []scenario.Fault{{At: scenario.Duration(10 * s), Kind: "blackhole", For: scenario.Duration(10 * s)}},
		Length: scenario.Duration(30 * s), WarmUp: 1,
	}
	for _, f := range changes {
		f(x)
	}
	return x
}

// expecting adds an expectation.
func expecting(metric, op string, value float64, after, before time.Duration) func(*scenario.Scenario) {
	return func(x *scenario.Scenario) {
		x.Expect = append(x.Expect, scenario.Expectation{
			Metric: metric, Op: op, Value: value, After: scenario.Duration(after), Before: scenario.Duration(before),
		})
	}
}

// limits adds a second limit, of a token per second and bursts of two.
func twoLimits(x *scenario.Scenario) {
	x.Limits = append(x.Limits, scenario.Limit{Name: "users", Limit: tiered.PerSecond(1).WithBurst(2)})
}

// granted and limited are what a limiter says most.
var (
	granted = tiered.Decision{Allowed: true, Reason: tiered.Granted, Tier: tiered.Local}
	shared  = tiered.Decision{Allowed: true, Reason: tiered.Fallback, Tier: tiered.Failover}
	limited = tiered.Decision{Reason: tiered.Limited, Tier: tiered.Local}
)

// common is the limit of a key that has none of its own.
var common tiered.Limit

// ask makes n requests of one token for a key at an instant, the first of which are admitted at
// once.
func ask(m *measure.Meter, at time.Duration, process, limit int, key string, n, admitted int) {
	for i := range n {
		d := limited
		if i < admitted {
			d = granted
		}
		m.Decided(at, m.Asked(at, process, limit, key, 1, common), d)
	}
}

// phase is one of a report.
func phase(t testing.TB, r *measure.Report, name string) measure.Metrics {
	t.Helper()
	for _, p := range r.Phases {
		if p.Name == name {
			return p.Metrics
		}
	}
	t.Fatalf("no phase %q", name)
	return measure.Metrics{}
}

// want compares values by name.
func want[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// near is want for floats.
func near(t rapid.TB, what string, got, want float64) {
	t.Helper()
	if d := got - want; d > 1e-9 || d < -1e-9 {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// stats are a process' with one policy.
func stats(policy string, p tiered.PolicyStats) tiered.Stats {
	return tiered.Stats{Policies: map[string]tiered.PolicyStats{policy: p}}
}

// leased are the figures of a policy that got tokens from Redis. What is left of them is burnt.
func leased(granted, spent, returned, held int64) (p tiered.PolicyStats) {
	l := &p.Leases
	l.Granted, l.Spent, l.Returned, l.Held = granted, spent, returned, held
	l.Burnt = max(granted-spent-returned-held, 0)
	return p
}

// alone adds tokens that were admitted without Redis.
func alone(p tiered.PolicyStats, fallback, open int64) tiered.PolicyStats {
	p.Tokens.Fallback, p.Tokens.Open = fallback, open
	return p
}

func name(i int) string { return fmt.Sprintf("key %d", i) }
