package dispatch

import (
	"testing"
	"time"
)

func TestFleetRisesAtOnceAndFallsAfterAMinute(t *testing.T) {
	f := newFleet(3)
	for _, step := range []struct {
		at        time.Duration
		processes int64
		want      int64
	}{
		{0, 1, 3}, // Options.Processes is the floor
		{3 * time.Second, 50, 50},
		{6 * time.Second, 10, 50},
		{60 * time.Second, 8, 50},
		{63 * time.Second, 8, 50}, // exactly a minute old
		{64 * time.Second, 8, 10},
		{67 * time.Second, 8, 8},
		{70 * time.Second, 9, 9},
	} {
		f.learn(step.at, step.processes)
		if got := f.size(); got != step.want {
			t.Fatalf("at %v: %d, want %d", step.at, got, step.want)
		}
	}
	if newFleet(0).size() != 1 {
		t.Error("unknown is not 1")
	}
}
