package tiered

import (
	"testing"
	"time"
)

func TestClockTakesTheShortestRoundTripOfLate(t *testing.T) {
	const offset = 1_000_000 // µs that the node is ahead
	var c clock
	if _, known := c.at(0); known {
		t.Fatal("known before any reply")
	}
	// The reply of a slow call says little: the node read its clock somewhere within.
	c.learn(0, 10*ms, offset+9000)
	if got, _ := c.at(0); got != offset+4000 {
		t.Fatalf("%d, want the middle of the round trip", got-offset)
	}
	c.learn(20*ms, 21*ms, offset+20_500)
	if got, _ := c.at(0); got != offset {
		t.Fatalf("%d off after a short round trip", got-offset)
	}
	c.learn(30*ms, 50*ms, offset+49_000)
	if got, _ := c.at(0); got != offset {
		t.Fatalf("%d off: a longer round trip replaced a shorter one", got-offset)
	}
	// A step of the node's clock is noticed within two windows, whatever the round trip.
	for at := 100 * ms; at < 11*time.Second; at += 100 * ms {
		c.learn(at, at+2*ms, offset+3_000_000+(at+ms).Microseconds())
	}
	if got, _ := c.at(0); got != offset+3_000_000 {
		t.Fatalf("%d off after 11 s of replies from a clock 3 s ahead", got-offset-3_000_000)
	}
	c.correct(0, ms, 500+7)
	if got, _ := c.at(0); got != 7 {
		t.Fatalf("a correction left %d", got)
	}
}

func TestTripIsTheNinetyNinthPercentile(t *testing.T) {
	var c clock
	for range tripFew - 1 {
		c.learn(0, 5*ms, 0)
	}
	if c.trip() != tripUnknown {
		t.Fatalf("%v before there are %d samples", c.trip(), tripFew)
	}
	for i := range 128 {
		d := ms
		if i%64 == 0 {
			d = 9 * ms
		}
		c.learn(0, d, 0)
	}
	if c.trip() != 9*ms {
		t.Fatalf("%v, want 9ms: 2 of 128 took that", c.trip())
	}
}

func TestFleetRisesAtOnceAndFallsAfterAMinute(t *testing.T) {
	f := fleet{least: 3}
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
	if (&fleet{}).size() != 1 {
		t.Error("unknown is not 1")
	}
}
