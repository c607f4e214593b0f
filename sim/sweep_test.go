package sim_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

const brief = `name: small
limits:
  - {name: api, rate: 50/s, burst: 50}
fleet: {n: 3}
traffic:
  - {shape: poisson, rate: 75/s}
faults:
  - {at: 3s, kind: blackhole, for: 2s}
run: 7s
warmup: 2s
expect:
  - over_admission <= 100
`

// Each cell of a sweep is the run that Run makes of its values, whatever runs beside it.
func TestSweepIsRuns(t *testing.T) {
	s := parse(t, brief+"sweep: {fleet.mode: [local, open, closed], fleet.n: [2, 3]}\n")
	var last, calls atomic.Int64
	all := fatal.Get(sim.Sweep(s, &sim.Options{Seed: 5, Progress: func(at, of time.Duration) {
		calls.Add(1)
		last.Store(int64(of))
		if at > of || of != 42*time.Second {
			t.Errorf("progress %v of %v", at, of)
		}
	}}))(t)
	if len(all.Cells) != 6 || all.Seed != 5 || calls.Load() < 6 {
		t.Fatalf("%d cells, seed %d, %d calls of Progress", len(all.Cells), all.Seed, calls.Load())
	}
	seen := map[string]bool{}
	for i, c := range all.Cells {
		one := s.Clone()
		one.Sweep = nil
		for path, value := range c.Values {
			fatal.If(t, one.Set(path, value))
		}
		r := fatal.Get(sim.Run(one, &sim.Options{Seed: 5}))(t)
		if r.Unseed != c.Unseed || r.Passed != c.Passed || r.Metrics != c.Metrics {
			t.Errorf("cell %d %v: unseed %s, and alone %s", i, c.Values, c.Unseed, r.Unseed)
		}
		seen[c.Unseed] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d different runs of 6", len(seen))
	}
	if want := map[string]string{"fleet.mode": "local", "fleet.n": "3"}; !maps.Equal(all.Cells[1].Values, want) {
		t.Errorf("the second cell is %v: the last axis changes first", all.Cells[1].Values)
	}
}

func TestSweepErrors(t *testing.T) {
	s := parse(t, brief)
	for _, c := range []struct {
		axes []scenario.Axis
		want string
	}{
		{nil, "has no axis"},
		{[]scenario.Axis{{Path: "fleet.n", Values: []string{"5", "0"}}}, "sweep.1.2 is \"0\""},
		{[]scenario.Axis{{Path: "run", Values: []string{"3s"}}}, "must be"},
		{[]scenario.Axis{
			{Path: "traffic.shape", Values: []string{"closed"}}, {Path: "traffic.rate", Values: []string{"1/s"}},
		}, "must be"},
	} {
		one := s.Clone()
		one.Sweep = c.axes
		if _, err := sim.Sweep(one, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.axes, err, c.want)
		}
	}
	if _, err := sim.Sweep(nil, nil); err == nil {
		t.Error("no error for nil")
	}
	if _, err := sim.RunAll([]*scenario.Scenario{s, nil}, nil); err == nil {
		t.Error("no error for a scenario that is nil")
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for _, name := range sim.Library() {
		if s, err := sim.Load(name); err != nil || s.Name == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	twin := fatal.Get(json.Marshal(parse(t, brief)))(t)
	var text string
	fatal.If(t, json.Unmarshal(twin, &text))
	for _, path := range []string{
		write("mine.yaml", brief), write("mine.yml", "\ufeff"+brief), write("mine", brief), write("again.yaml", text),
		write("mine.json", `{"name":"small","limits":[{"name":"api","rate":"1/s"}],"fleet":{"n":3},"traffic":[`+
			`{"shape":"poisson","rate":"1/s"}],"run":"7s"}`),
	} {
		if s, err := sim.Load(path); err != nil || s.Name != "small" {
			t.Errorf("%s: %v", path, err)
		}
	}
	for name, want := range map[string]string{
		"nothing":                              `scenario is "nothing": must be one of`,
		"":                                     `scenario is "": must be one of`,
		"nothing.yaml":                         `scenario "nothing.yaml": no such file`,
		write("wrong.yaml", "fleet: {n: 0}\n"): `wrong.yaml":1:12: fleet.n is "0": must be`,
		write("wrong.json", "{"):               `wrong.json":2:1: did not find expected node content`,
		write("old.yaml", "name \"x\"\n"):      `old.yaml":1:1: the scenario is in the language of before`,
		write("long.yaml", strings.Repeat("#", scenario.MaxBytes+1)): `long.yaml" has more than 1048576 bytes`,
		dir:               "is a directory",
		"./\x1b[31m.yaml": `"./\x1b[31m.yaml"`,
	} {
		s, err := sim.Load(name)
		if s != nil || err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%.40q: %v, want %q", name, err, want)
		}
	}
	if _, err := sim.Load("./nothing.yaml"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v: does not say that it is not there", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("MustLoad did not panic")
		}
	}()
	sim.MustLoad("nothing")
}

// A user's policies take the place of those of the scenario, and one that would not is no silent
// success.
func TestPolicies(t *testing.T) {
	two := parse(t, strings.NewReplacer(
		"fleet:", "  - {name: users, rate: 10/s}\nfleet:",
		"shape: poisson,", "shape: poisson, limit: api,",
		"faults:", "  - {shape: poisson, limit: users, rate: 1/s}\nfaults:",
	).Replace(brief))
	one := parse(t, brief)
	policy := tiered.Policy{Name: "mine", Limit: tiered.PerSecond(10)}
	for name, c := range map[string]struct {
		s        *scenario.Scenario
		policies []tiered.Policy
		want     string
	}{
		"nobody's": {two, []tiered.Policy{policy}, `Policies[0].Name is "mine"`},
		"twice": {
			two,
			[]tiered.Policy{{Name: "api", Limit: policy.Limit}, {Name: "api", Limit: policy.Limit}},
			`Policies[1].Name is "api": must be there once`,
		},
		"two of one": {one, []tiered.Policy{policy, {Name: "api", Limit: policy.Limit}}, `Policies[0].Name is "mine"`},
		"no limit":   {one, []tiered.Policy{{Name: "api"}}, "Limit"},
	} {
		if _, err := sim.Run(c.s, &sim.Options{Policies: c.policies}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	r, err := sim.Run(two, &sim.Options{Policies: []tiered.Policy{{Name: "users", Limit: tiered.PerSecond(7)}}})
	if err != nil || r.Scenario.Limits[1].Limit.Tokens != 7 || r.Scenario.Limits[0].Limit.Tokens != 50 {
		t.Errorf("%v", err)
	}
}
