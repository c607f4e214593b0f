package measure_test

import (
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Without a limit an expectation is about the first, but of what the fleet has in common about all.
func TestExpectationOfALimit(t *testing.T) {
	of := func(metric, limit string, value float64) func(*scenario.Scenario) {
		return func(x *scenario.Scenario) {
			expecting(metric, "<=", value, 0, 0)(x)
			x.Expect[len(x.Expect)-1].Limit = limit
		}
	}
	m := measure.New(made(twoLimits, of("over_admission", "", 1), of("over_admission", "users", 1), of("over_admission",
		"api", 0),
		of("redis_calls", "", 2), of("redis_calls", "users", 2), expecting("utilisation", ">=", 1.2, 0,
			0), expecting("shortfall", ">=", 0.01, 0, 0)))
	ask(m, 1*s, 0, 0, "k", 11, 11)
	ask(m, 1*s, 0, 1, "k", 5, 5)
	m.Called(1*s, 0, 30)
	r := m.Report()
	for i, w := range []measure.Outcome{
		{Text: "over_admission <= 1", Value: 1, Passed: true},
		{Text: "over_admission <= 1 limit=users", Value: 3, Passed: false},
		{Text: "over_admission <= 0 limit=api", Value: 1, Passed: false},
		{Text: "redis_calls <= 2/s", Value: 1, Passed: true},
		{Text: "redis_calls <= 2/s limit=users", Value: 1, Passed: true},
		{Text: "utilisation >= 120%", Value: 1.1, Passed: false},
		{Text: "shortfall >= 1%", Value: 0, Passed: false},
	} {
		got := r.Expectations[i]
		want(t, "text", got.Text, w.Text)
		want(t, w.Text, got.Passed, w.Passed)
		if d := got.Value - w.Value; d > 1e-6 || d < -1e-6 {
			t.Errorf("%s: %v, want %v", w.Text, got.Value, w.Value)
		}
	}
	want(t, "passed", r.Passed, false)

	m = measure.New(made(expecting("over_admission", "<=", 1, 0, 0)))
	ask(m, 1*s, 0, 0, "k", 11, 11)
	want(t, "passed", m.Report().Passed, true)
}
