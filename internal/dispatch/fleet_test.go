package dispatch

import (
	"slices"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

func TestFleetRisesAtOnceAndFallsWithinSeconds(t *testing.T) {
	f := &fleet{min: 3}
	for _, step := range []struct {
		at        time.Duration
		processes int64
		want      int64
	}{
		{0, 1, 3}, // Options.Processes is the floor
		{3 * time.Second, 50, 50},
		{6 * time.Second, 10, 50},
		{9 * time.Second, 8, 50},
		{13 * time.Second, 8, 50}, // exactly as old as may be
		{14 * time.Second, 8, 10},
		{17 * time.Second, 8, 8},
		{20 * time.Second, 9, 9},
		// A silence counts as if it had not been: the others are not back yet.
		{80 * time.Second, 1, 9},
		{83 * time.Second, 9, 9},
		{86 * time.Second, 1, 9},
	} {
		f.learn(step.at, step.processes)
		if got := f.size(); got != step.want {
			t.Fatalf("at %v: %d, want %d", step.at, got, step.want)
		}
	}
	if new(fleet).size() != 1 {
		t.Error("unknown is not 1")
	}
}

// Each policy has its own number. While the node does not know of a policy, all processes count for
// it.
func TestFleetsByPolicy(t *testing.T) {
	census := func(all int64, policies ...int64) remote.Census {
		c := remote.Census{Processes: all}
		for _, n := range policies {
			c.Policies = append(c.Policies, remote.PolicyCensus{Processes: n})
		}
		return c
	}
	f := newFleets(2)
	for i, step := range []struct {
		census remote.Census
		before []int64
		sizes  [3]int64 // of two policies, and of one that was never announced
		all    int64
	}{
		{census(7), nil, [3]int64{7, 7, 7}, 7},
		{census(8, 3), []int64{7}, [3]int64{3, 8, 8}, 8},
		{census(8, 4, 1), []int64{3, 8}, [3]int64{4, 2, 8}, 8}, // Options.Processes is the floor
		{census(9), nil, [3]int64{9, 9, 9}, 9},                 // it has too many policies now
		{census(9, 5, 6), []int64{9, 9}, [3]int64{5, 6, 9}, 9},
	} {
		before := f.learn(time.Duration(i)*time.Second, step.census)
		sizes := [3]int64{f.size(0), f.size(1), f.size(2)}
		if !slices.Equal(before, step.before) || sizes != step.sizes || f.all.size() != step.all {
			t.Errorf("step %d: before %v, then %v and %d, want %v, %v and %d", i, before, sizes, f.all.size(),
				step.before, step.sizes, step.all)
		}
	}
}
