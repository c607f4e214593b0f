package sim_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// places is a scenario in which what runs meets faults of each kind.
const places = `name: places in trouble
limits: [{name: api, rate: 100/s, burst: 40}]
at_once: {places: 6, life: 2s}
fleet: {n: 6, mode: closed}
traffic:
  - {shape: poisson, rate: 150/s, runs: 40ms, keys: 3, keyskew: 1}
  - {shape: closed, clients: 10, think: 20ms, retry: 1, runs: 20ms, keys: 2}
  - {shape: poisson, rate: 20/s}
net: {rtt: 400us, jitter: 200us}
faults:
  - {at: 2s, kind: slow, delay: 100ms, for: 1s}
  - {at: 3s, kind: lose, for: 1s, chance: 20%}
  - {at: 4s, kind: freeze, for: 300ms}
  - {at: 5s, kind: crash, procs: 2, restart: 300ms}
  - {at: 6s, kind: deploy, every: 100ms}
run: 8s
expect:
  - at_once <= 6
  - full >= 10%
  - unaccounted <= 0
sometimes: [place_refused, unavailable, process_died]
`

// Shipped code decides what runs: no more than the places, whatever is lost, and the same each
// time.
func TestAtOnce(t *testing.T) {
	r := repeats(t, places, &sim.Options{Seed: 3})
	if !r.Passed {
		t.Errorf("%v", r)
	}
	if !strings.Contains(r.String(), "ran at the same time on 6 places, ") {
		t.Errorf("nobody is told of places:\n%v", r)
	}
	// A process that stands still for longer than the life has lost its places.
	still := strings.Replace(places, "{at: 4s, kind: freeze, for: 300ms}", "{at: 2s, kind: pause, for: 2800ms, procs: 2}", 1)
	still = strings.Replace(still, "[place_refused", "[place_lost, place_refused", 1)
	still = strings.Replace(still, "  - {shape: poisson, rate: 20/s}", "  - {shape: poisson, rate: 20/s, runs: 3s, keys: 9}", 1)
	still = strings.Replace(still, "- at_once <= 6", "- at_once >= 7", 1)
	if r := rehearse(t, still, &sim.Options{Seed: 3}); !r.Passed {
		t.Errorf("%v", r)
	}
}

// The user's own policy is what runs: its places, its life, its fail mode, its longest run and its
// hooks.
func TestOwnAtOnce(t *testing.T) {
	s := parse(t, strings.Replace(places, "rate: 20/s}", "rate: 20/s, runs: 3s, keys: 9}", 1))
	var lost atomic.Int64
	r := fatal.Get(sim.Run(s, &sim.Options{Seed: 3, AtOnce: &atonce.Policy{
		Name: "flight", Places: 3, Life: 5 * time.Second, FailMode: tiered.FailOpen,
		MaxRun: time.Second, Lost: func(_ string, n int) { lost.Add(int64(n)) },
	}}))(t)
	if a := r.Scenario.AtOnce; a.Places != 3 || time.Duration(a.Life) != 5*time.Second || s.AtOnce.Places != 6 {
		t.Errorf("the report is of %+v, and the scenario has %+v now", a, s.AtOnce)
	}
	if r.AtOnceFailMode != "open" || !strings.Contains(r.String(), "on 3 places") || lost.Load() == 0 {
		t.Errorf("%d places were lost: %v", lost.Load(), r)
	}
}
