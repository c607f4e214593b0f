package scenario_test

import (
	"fmt"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

func Example() {
	const text = `
name: Redis restarts
limits: [{name: api, rate: 1000/s}]
fleet: {n: 20}
traffic: [{shape: poisson, rate: 1500/s}]
faults: [{at: 20s, kind: refuse, error: LOADING, fro: 5s}]
run: 15s
`
	_, err := scenario.Parse(text)
	fmt.Println(err)

	calm, _, _ := strings.Cut(text, "faults")
	s, err := scenario.Parse(calm + "run: 60s")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Set("fleet.n", "200"), s.Set("fleet.sizes", "5") != nil, s.Validate())
	fmt.Print(s)
	// Output:
	// 6:15: faults.1.at is 20s: must be before the end of the run, at 15s
	// 6:50: faults.1.fro: refuse takes only at, kind, for, error; did you mean for?
	// <nil> true <nil>
	// name: Redis restarts
	// limits:
	//   - {name: api, rate: 1000/s}
	// fleet: {n: 200}
	// traffic:
	//   - {shape: poisson, rate: 1500/s}
	// run: 1m
}
