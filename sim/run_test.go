package sim_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A request that nobody decides is told of, but not while a fault holds it up.
func TestUndecided(t *testing.T) {
	for _, c := range []struct {
		fault string
		takes time.Duration // the first decision
		want  bool
	}{{"", 0, false}, {"", time.Minute, true}, {"faults: [{at: 3s, kind: pause}]\n", time.Minute, false}} {
		limit := tiered.PerSecond(5)
		slow := tiered.Policy{Limit: limit, PerKey: func(string) tiered.Limit { time.Sleep(c.takes); return limit }}
		_, err := sim.Run(parse(t, "name: u\nlimits: [{name: a, rate: 5/s}]\nfleet: {n: 1}\ntraffic: [{shape: poisson, rate: 5/s}]\n"+
			"run: 4s\n"+c.fault), &sim.Options{Policies: []tiered.Policy{slow}})
		if errors.Is(err, sim.ErrUndecided) != c.want || err != nil && !c.want {
			t.Errorf("%q, a decision of %v: %v", c.fault, c.takes, err)
		}
	}
}
