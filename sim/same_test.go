package sim_test

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// long has TestSameSeedSameRun take the minutes that it needs: make hunt HUNT=speed.
var long = flag.Bool("long", false, "run the test of determinism in full: minutes")

// rehearse runs a scenario and returns its report.
func rehearse(t *testing.T, text string, o *sim.Options) *measure.Report {
	t.Helper()
	r := fatal.Get(sim.Run(parse(t, text), o))(t)
	return r
}

func parse(t *testing.T, text string) *scenario.Scenario {
	t.Helper()
	s := fatal.Get(scenario.Parse(text))(t)
	return s
}

// lines are a report as JSON.
func lines(t *testing.T, r *measure.Report) []string {
	t.Helper()
	var b strings.Builder
	fatal.If(t, measure.JSON(&b, r))
	return strings.Split(b.String(), "\n")
}

// differing are the first few lines that differ.
func differing(a, b []string) string {
	var text []string
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] && len(text) < 20 {
			text = append(text, fmt.Sprintf("%d: %s | %s", i, a[i], b[i]))
		}
	}
	return strings.Join(text, "\n")
}

// troubled is a scenario with something of everything that could make two runs differ.
const troubled = `name: everything that may be in any order
limits:
  - {name: api, rate: 300/s, burst: 100}
  - {name: users, rate: 20/s, burst: 10}
fleet: {n: 12, maxkeys: 40}
traffic:
  - {shape: poisson, limit: api, rate: 450/s}
  - {shape: bursts, limit: users, rate: 200/s, every: 1s, for: 200ms, keys: 60, keyskew: 1.1, procskew: 0.5, cost: 1, maxcost: 4}
  - {shape: closed, limit: users, clients: 20, think: 20ms, retry: 2, keys: 30, cancel: 10%}
net: {rtt: 400us, jitter: 200us}
faults:
  - {at: 2s, kind: blackhole, for: 1s, procs: 50%}
  - {at: 3s, kind: freeze, for: 400ms}
  - {at: 4s, kind: lose, for: 1s, chance: 20%}
  - {at: 4s, kind: cut, for: 1s, chance: 10%}
  - {at: 5s, kind: kill, for: 500ms}
  - {at: 6s, kind: pause, for: 700ms, procs: 3}
  - {at: 7s, kind: crash, procs: 2, restart: 300ms}
  - {at: 7500ms, kind: latency, delay: 30ms, jitter: 10ms, for: 500ms}
  - {at: 8s, kind: deploy, every: 100ms}
  - {at: 8500ms, kind: flap, up: 100ms, down: 200ms, for: 1s}
  - {at: 9s, kind: clock, by: -3s}
  - {at: 9s, kind: failover, lose: 200ms, for: 100ms}
  - {at: 9500ms, kind: scale, n: 15}
  - {at: 9600ms, kind: scriptflush}
  - {at: 9700ms, kind: evict, keys: 10}
  - {at: 9800ms, kind: flood, keys: 200, for: 200ms}
run: 10s
`

// The same seed gives the same run, whatever the processors do; another seed another.
func TestSameSeedSameRun(t *testing.T) {
	first := repeats(t, troubled, &sim.Options{Seed: 7})
	if r := rehearse(t, troubled, &sim.Options{Seed: 8}); r.Unseed == first.Unseed {
		t.Error("the seed changes nothing")
	}
}

// repeats runs a scenario several times, each with another number of processors, and wants the same
// report each time.
func repeats(t *testing.T, text string, o *sim.Options) (first *measure.Report) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	times := 6 // each number of processors twice
	switch {
	case *long:
		times = 20
	case testing.Short():
		times = 3
	}
	for i := range times {
		runtime.GOMAXPROCS([]int{1, 2, 4}[i%3])
		r := rehearse(t, text, o)
		if first == nil {
			first = r
			t.Logf("unseed %s: %d requests, %v", r.Unseed, r.Metrics.Offered, r.Sometimes)
		}
		if a, b := lines(t, first), lines(t, r); !slices.Equal(a, b) {
			t.Fatalf("seed %d, run %d: unseed %s, and first %s:\n%s", o.Seed, i, r.Unseed, first.Unseed, differing(a, b))
		}
	}
	return first
}
