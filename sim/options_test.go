package sim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// What cannot be run is refused before it is, with all that is wrong.
func TestRunRefuses(t *testing.T) {
	valid := parse(t, stage)
	for _, c := range []struct {
		s    *scenario.Scenario
		o    *sim.Options
		want []string
	}{
		{nil, nil, []string{"the scenario is nil"}},
		{&scenario.Scenario{}, &sim.Options{}, []string{"name is", "fleet.n is", "run is"}},
		{valid, &sim.Options{Policies: []tiered.Policy{{Limit: tiered.PerSecond(-1)}}}, []string{"Policy.Limit.Tokens is -1"}},
		{valid, &sim.Options{AtOnce: &atonce.Policy{Name: "flight", Places: 1}}, []string{`"flight": must be nil, because the scenario has no at_once`}},
		{parse(t, places), &sim.Options{AtOnce: &atonce.Policy{Name: "flight"}}, []string{"Policy.Places is 0"}},
	} {
		r, err := sim.Run(c.s, c.o)
		if r != nil || err == nil {
			t.Errorf("%v: %v, %v", c.want, r, err)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("nothing of %q in %v", w, err)
			}
		}
	}
}

// The user's own policy is what runs, and what the report is about; the scenario stays as it was.
func TestOwnPolicy(t *testing.T) {
	s := parse(t, stage)
	var told []time.Duration
	r := fatal.Get(sim.Run(s, &sim.Options{
		Policies: []tiered.Policy{{Limit: tiered.PerSecond(50).WithBurst(10), Lease: tiered.Lease{Size: tiered.NoLease}}},
		Progress: func(at, of time.Duration) {
			if of != 12*time.Second {
				t.Errorf("%v of %v", at, of)
			}
			told = append(told, at)
		},
	}))(t)
	if rate := mean(r, r.Series.Admitted, 2, 12); rate < 45 || rate > 55 || r.Metrics.OverAdmission > 0.1 {
		t.Errorf("%.1f tokens per second were admitted, %g too many at a time", rate, r.Metrics.OverAdmission)
	}
	if l := r.Scenario.Limits[0]; l.String() != "50/s burst 10" || s.Limits[0].Limit.Tokens != 200 {
		t.Errorf("the report is of %v, and the scenario has %v now", &l, &s.Limits[0])
	}
	if calls := perToken(r); calls < 0.99 {
		t.Errorf("%.2f calls per token: leases in a run without", calls)
	}
	if len(told) < 10 || len(told) > 600 || told[len(told)-1] != 12*time.Second {
		t.Errorf("was told %d times how far it is, at last %v", len(told), told[max(len(told)-1, 0):])
	}
	if r.Seed != 1 || len(r.Unseed) != 16 || !strings.Contains(r.Version, "go1.") {
		t.Errorf("seed %d, unseed %q, version %q", r.Seed, r.Unseed, r.Version)
	}
}
