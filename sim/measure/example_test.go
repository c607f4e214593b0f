package measure_test

import (
	"fmt"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A limiter that admits three of a burst of two.
func Example() {
	s := &scenario.Scenario{
		Name:   "one too many",
		Limits: []scenario.Limit{{Name: "login", Tokens: 2, Per: scenario.Duration(time.Minute)}},
		Fleet:  scenario.Fleet{N: 1},
		Length: scenario.Duration(10 * time.Second),
		Expect: []scenario.Expectation{{Metric: "over_admission", Op: "<=", Value: 0}},
	}
	m := measure.New(s)
	m.Joined(0, 0)
	at := 5 * time.Second
	for range 3 {
		r := m.Asked(at, 0, 0, "user", 1)
		m.Decided(at, r, tiered.Decision{Allowed: true, Reason: tiered.Granted})
	}
	r := m.Report(10 * time.Second)
	fmt.Printf("ideal %d, admitted %d, over by %g\n", r.Metrics.Ideal, r.Metrics.Admitted, r.Metrics.OverAdmission)
	for _, o := range r.Expectations {
		fmt.Println(o.Text, o.Passed)
	}
	// Output:
	// ideal 2, admitted 3, over by 1
	// over_admission <= 0 false
}
