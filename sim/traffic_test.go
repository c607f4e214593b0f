package sim_test

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Each shape of traffic is what its statement says.
func TestTraffic(t *testing.T) {
	const rest = "name: traffic\nlimits: [{name: api, rate: 100000/s, burst: 100000}]\nfleet: {n: 4}\nrun: 22s\nwarmup: 1s\n"
	near := func(x, want float64) bool { return math.Abs(x-want) <= 0.1*want+1 }
	offered := func(r *measure.Report, from, to float64) float64 { return mean(r, r.Series.Offered, from, to) }
	var mu sync.Mutex
	var keys map[string]bool // that were asked for
	limit := tiered.PerSecond(100_000)
	seen := []tiered.Policy{{Limit: limit, PerKey: func(key string) tiered.Limit {
		mu.Lock()
		defer mu.Unlock()
		keys[key] = true
		return limit
	}}}
	for _, c := range []struct {
		traffic string
		ok      func(r *measure.Report) bool
	}{
		{"{shape: poisson, rate: 500/s}", func(r *measure.Report) bool {
			return near(offered(r, 1, 11), 500) &&
				near(offered(r, 11, 22), 500)
		}},
		{"{shape: poisson, rate: 500/s, cost: 4}", func(r *measure.Report) bool { return near(offered(r, 1, 22), 2000) }},
		{"{shape: poisson, rate: 500/s, cost: 1, maxcost: 9}", func(r *measure.Report) bool {
			return near(offered(r, 1, 22), 2500)
		}},
		{"{shape: bursts, rate: 500/s, every: 2s, for: 500ms}", func(r *measure.Report) bool {
			return near(offered(r, 2, 22), 500) && near(offered(r, 8, 8.5), 2000) && offered(r, 8.5, 10) == 0
		}},
		{"{shape: ramp, rate: 100/s, to: 1000/s}", func(r *measure.Report) bool {
			return near(offered(r, 1, 3), 180) && near(offered(r, 10, 12), 550) && near(offered(r, 20, 22), 960)
		}},
		{"{shape: diurnal, rate: 100/s, to: 1000/s, every: 10s}", func(r *measure.Report) bool {
			return offered(r, 9.5, 10.5) < 160 && near(offered(r, 14.5, 15.5), 980) && near(offered(r, 2, 22), 550)
		}},
		{"{shape: closed, clients: 50, think: 99ms}", func(r *measure.Report) bool { return near(offered(r, 1, 22), 500) }},
		// nine of ten are refused, and try again
		{"{shape: closed, clients: 50, think: 49ms, cost: 1000, retry: 3}", func(r *measure.Report) bool {
			return r.Metrics.Utilisation > 0.9 && offered(r, 5, 22) > 2e5 && offered(r, 5, 22) < 1e6
		}},
		{"{shape: poisson, rate: 500/s, keys: 100, keyskew: 1}", func(*measure.Report) bool {
			return len(keys) > 90 &&
				len(keys) <= 100
		}},
		{"{shape: poisson, rate: 100/s, keys: -1}", func(*measure.Report) bool { return len(keys) > 2000 }},
		{"{shape: poisson, rate: 100/s, keys: -1, cancel: 100%}", func(r *measure.Report) bool {
			return count(r, "canceled") > 600 // the others were quicker: a round trip is 0.4 ms
		}},
		{"{shape: poisson, rate: 100/s, keys: -1}", func(r *measure.Report) bool { return count(r, "canceled") == 0 }},
	} {
		t.Run(c.traffic, func(t *testing.T) {
			keys = map[string]bool{}
			if r := rehearse(t, rest+"traffic: ["+c.traffic+"]\n", &sim.Options{Policies: seen}); !c.ok(r) {
				t.Errorf("\n%v", r)
			}
		})
	}
}

// The processes get the shares that procskew says.
func TestTrafficIsSpread(t *testing.T) {
	for skew, want := range map[float64]float64{0: 1, 0.5: 2, 1: 4, 2: 16} {
		choose, leave, err := sim.Spread(parse(t,
			fmt.Sprintf("name: spread\nlimits: [{name: api, rate: 1000/s}]\nfleet: {n: 4}\n"+
				"traffic: [{shape: poisson, rate: 1/s, procskew: %v}]\nrun: 5s\n", skew)))
		if err != nil {
			t.Fatal(err)
		}
		var n [4]float64
		for range 100_000 {
			slot, _ := choose()
			n[slot]++
		}
		if ratio := n[0] / n[3]; ratio < 0.95*want || ratio > 1.05*want {
			t.Errorf("asked %v: the first %g times as often as the fourth, want %v", n, ratio, want)
		}
		leave(0)
		for range 1000 {
			if slot, _ := choose(); slot == 0 {
				t.Fatal("who is gone is asked")
			}
		}
		for i := range 4 {
			leave(i)
		}
		if slot, ok := choose(); ok {
			t.Errorf("nobody is there, and %d is asked", slot)
		}
	}
}
