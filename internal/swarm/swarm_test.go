package swarm

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

var seeds = flag.Int("seeds", 30, "how many seeds TestSwarm runs")

// Whatever comes on top of whatever, all promises are kept, and the runs are about what they should be.
func TestSwarm(t *testing.T) {
	n := *seeds
	if testing.Short() {
		n = min(n, 10) // under the race detector some seconds each
	}
	res, err := Run(&Options{Seeds: n, Failed: func(f Failure) {
		t.Errorf("seed %d, %s, shrunk in %d runs:\n%s", f.Seed, f.What, f.Tries, f.Text())
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d seeds, over-admission in %d, at most %.2f of its bound (seed %d); faults %v; happened %v",
		res.Seeds, res.Over, res.Nearest, res.NearestSeed, res.Kinds, res.Happened)
}

// Between them the seeds of a thousand have faults of each kind, on each fail mode, on top of each other.
func TestDraw(t *testing.T) {
	kinds, modes, overlapping := map[string]bool{}, map[string]bool{}, 0
	for seed := range uint64(1000) {
		s := Draw(seed, nil)
		if err := s.Validate(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		modes[s.Fleet.Mode] = true
		for i := range s.Faults {
			f := &s.Faults[i]
			kinds[f.Kind] = true
			if time.Duration(s.Length)-endOf(s, f) < settling+quiet {
				t.Fatalf("seed %d: nothing after %v\n%v", seed, f, s)
			}
			if i > 0 && time.Duration(f.At) < endOf(s, &s.Faults[i-1]) {
				overlapping++
			}
		}
	}
	if len(kinds) != len(scenario.Kinds) || len(modes) != 3 || overlapping < 500 {
		t.Errorf("%d kinds of %d, %d modes, %d faults on top of each other", len(kinds), len(scenario.Kinds),
			len(modes), overlapping)
	}
	if a, b := Draw(7, nil).String(), Draw(7, nil).String(); a != b {
		t.Errorf("one seed, two scenarios:\n%s%s", a, b)
	}
}

// Of a user's scenario all is kept but the faults.
func TestDrawOnBase(t *testing.T) {
	base := sim.MustLoad("outage")
	was := base.String()
	a, b := Draw(1, base), Draw(2, base)
	if base.String() != was {
		t.Error("the base has changed")
	}
	for _, s := range []*scenario.Scenario{a, b} {
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(s.Limits, base.Limits) || !reflect.DeepEqual(s.Traffic, base.Traffic) ||
			s.Fleet != base.Fleet || s.Net != base.Net {
			t.Errorf("not as the base:\n%v", s)
		}
	}
	if reflect.DeepEqual(a.Faults, b.Faults) {
		t.Error("two seeds, the same faults")
	}
}

// The bound is what can be worked out by hand.
func TestBound(t *testing.T) {
	const inf = 1e18
	for _, c := range []struct {
		fleet, faults string
		want          float64 // beyond 1 + 100/s times the 400 µs of a round trip, or 20 ms
	}{
		{"n: 4, mode: closed", "", 1.04},
		{"n: 4, mode: local", "", 1.04},
		{"n: 4, mode: closed", "{at: 6s, kind: blackhole, for: 5s}", 3},
		{"n: 4, mode: closed", "{at: 6s, kind: flush}, {at: 7s, kind: evict, keys: 1}, {at: 8s, kind: scriptflush}", 101.04},
		{"n: 4, mode: closed", "{at: 6s, kind: kill, for: 1s}, {at: 6500ms, kind: failover, for: 1s, lose: 1s}", 101.04},
		{"n: 4, mode: closed", "{at: 6s, kind: clock, by: 1h}, {at: 7s, kind: clock, by: 100ms}, {at: 8s, kind: clock, by: -1h}", 61.04},
		{"n: 4, mode: closed", "{at: 7s, kind: failover, lose: 1s, for: 1s}, {at: 7500ms, kind: clock, by: -200ms}", 71.04},
		{"n: 4, mode: closed", "{at: 6s, kind: crash, restart: 1s}, {at: 7s, kind: deploy, every: 1s}, {at: 7s, kind: scale, n: 9}", 1.04},
		{"n: 4, mode: open", "{at: 6s, kind: scriptflush}", inf},
		{"n: 4, mode: local, maxkeys: 3", "{at: 6s, kind: blackhole, for: 5s}", inf},
		// Everybody is alone for 5 s and uses up his share; then some may still be, for a Timeout, an open breaker
		// and five round trips of 400 µs: 1.052 s.
		{"n: 4, mode: local", "{at: 6s, kind: blackhole, for: 5s}", 3 + 4*12 + 105.2},
		{"n: 4, mode: local, processes: 8", "{at: 6s, kind: blackhole, for: 5s}", 3 + 4*6 + 52.6},
		{"n: 4, mode: local", "{at: 6s, kind: blackhole, for: 5s, procs: 1}", 3 + 4*12 + 6.052*25},
		{"n: 4, mode: local, budget: 200ms, timeout: 300ms", "{at: 6s, kind: refuse, for: 5s, error: OOM}", 1.04 + 4*12 + 130.2},
		// What concerns nobody's way to Redis is over when it has been asked, over a new connection.
		{"n: 4, mode: local", "{at: 6s, kind: scriptflush}", 1.04 + 4*12 + 0.2},
		{"n: 4, mode: local, processes: 4", "{at: 6s, kind: deploy, every: 1s}", 1.04 + 8*12 + 2*25*4.002},
		// Four new ones in place of the others, who know of two: half of the limit each.
		{
			"n: 4, mode: local, processes: 2", "{at: 6s, kind: deploy, every: 1s}, {at: 6s, kind: refuse, for: 5s, error: OOM}",
			1.04 + 4*12 + 4*25 + 100*5 + 210.4,
		},
	} {
		s, err := scenario.Parse("name: b\nlimits: [{name: a, rate: 100/s, burst: 50}]\nfleet: {" + c.fleet +
			"}\ntraffic: [{shape: poisson, rate: 10/s}]\nfaults: [" + c.faults + "]\nrun: 60s\nwarmup: 5s\n")
		if err != nil {
			t.Fatal(err)
		}
		if got := min(Bound(s, 0), inf); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%s, %s: %v, want %v", c.fleet, c.faults, got, c.want)
		}
	}
}

// Every promise can be broken, and is told by its name.
func TestBroken(t *testing.T) {
	s := Draw(1, nil)
	good := func() *measure.Report {
		r := &measure.Report{Scenario: s}
		for i := range s.Expect {
			r.Expectations = append(r.Expectations, measure.Outcome{Text: s.Expect[i].String(), Passed: true})
		}
		return r
	}
	if b := broken(good()); b.what != "" {
		t.Errorf("nothing is broken, but %v", b)
	}
	for i := range s.Expect {
		r := good()
		r.Expectations[i].Passed = false
		if b := broken(r); !strings.HasPrefix(b.what, strings.ReplaceAll(s.Expect[i].Metric, "_", "-")) {
			t.Errorf("%v: %v", &s.Expect[i], b)
		}
		r.Expectations[i].Value = -1
		if b := broken(r); b.what != "" {
			t.Errorf("%v, of nothing: %v", &s.Expect[i], b)
		}
	}
}

// The failures of former swarms stay away: what is in these files is mended.
func TestSeeds(t *testing.T) {
	files, err := filepath.Glob("../../sim/testdata/seeds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, f := range files {
		if why, err := Replay(f); err != nil || why != "" {
			t.Errorf("%s: %v %s", f, err, why)
		}
	}
}

// What is tried in place of a failing scenario is smaller, and not the same: without each of the faults, the
// streams and the limits, with a process less, with each fault shorter. The scenario itself stays.
func TestSmaller(t *testing.T) {
	for seed := range uint64(50) {
		s := Draw(seed, nil)
		was := s.String()
		without, streams, limits, shorter, fewer := map[string]bool{}, map[string]bool{}, map[string]bool{},
			map[int]bool{}, false
		for _, c := range smaller(s) {
			if len(c.Faults) > len(s.Faults) || c.Fleet.N > s.Fleet.N || slices.Equal(lines(c), lines(s)) {
				t.Fatalf("not smaller:\n%v%v", s, c)
			}
			switch {
			case len(c.Faults) == len(s.Faults)-1:
				without[fmt.Sprint(c.Faults)] = true
			case len(c.Limits) < len(s.Limits):
				limits[c.Limits[0].Name] = true
			case len(c.Traffic) < len(s.Traffic):
				streams[fmt.Sprint(c.Traffic)] = true
			}
			for i := range min(len(c.Faults), len(s.Faults)) {
				if c.Faults[i].Kind == s.Faults[i].Kind && c.Faults[i].For < s.Faults[i].For {
					shorter[i] = true
				}
			}
			fewer = fewer || c.Fleet.N < s.Fleet.N
		}
		want := map[string]bool{}
		for i := range s.Faults {
			want[fmt.Sprint(slices.Delete(slices.Clone(s.Faults), i, i+1))] = true
			if s.Faults[i].For > 1 && !shorter[i] {
				t.Errorf("seed %d: fault %d is never shorter\n%v", seed, i, s)
			}
		}
		if !maps.Equal(without, want) || fewer != (s.Fleet.N > 1) || s.String() != was ||
			len(s.Limits) > 1 && len(limits) != len(s.Limits) ||
			len(s.Traffic) > 1 && len(s.Limits) == 1 && len(streams) != len(s.Traffic) {
			t.Errorf("seed %d: without faults %v, limits %v, streams %v; fewer processes: %v\n%v", seed, without,
				limits, streams, fewer, s)
		}
	}
}
