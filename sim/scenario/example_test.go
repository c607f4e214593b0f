package scenario_test

import (
	"fmt"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

func ExampleParse() {
	_, err := scenario.Parse(`
name    "Redis restarts"
limit   api rate=1000
fleet   n=20
traffic poisson rate=1500/s
at 20s  refuse error=LOADING fro=5s
run     15s
`)
	fmt.Println(err)
	// Output:
	// 3:18: rate is 1000: must be a whole number per period, as in 1000/s, 100/min or 10/100ms
	// 6:4: at is 20s: must be before the end of the run, at 15s
	// 6:30: fro is unknown: refuse takes error, for; did you mean for?
}

func ExampleScenario_Set() {
	s, err := scenario.Parse(`
name    "Redis restarts"
limit   api rate=1000/s
fleet   n=20
traffic poisson rate=1500/s
at 20s  refuse error=LOADING for=5s
run     60s
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, set := range [][2]string{{"fleet.n", "200"}, {"limit.rate", "2_000/s"}, {"at.1.for", "1m"}, {"fleet.sise", "5"}} {
		if err := s.Set(set[0], set[1]); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(s.Validate())
	fmt.Print(s)
	// Output:
	// path is fleet.sise: must be one of fleet.n, fleet.mode, fleet.size, fleet.period, fleet.processes, fleet.budget, fleet.timeout, fleet.maxkeys, fleet.inflight, fleet.standing; did you mean fleet.size?
	// faults[0].for is 1m: must end within the run: at most 40s, or left out
	// name      "Redis restarts"
	// limit     api rate=2000/s
	// fleet     n=200
	// traffic   poisson rate=1500/s
	// at 20s    refuse for=1m error=LOADING
	// run       1m
}
