package failover_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
)

// TestAllocations: what every decision asks allocates nothing, in any state.
func TestAllocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := failover.New(failover.Options{Timeout: time.Hour})
		for _, next := range []func(){
			func() {},
			func() { run(t, g, "fff") },
			func() { time.Sleep(time.Second); begin(t, g) },
		} {
			next()
			if n := testing.AllocsPerRun(1000, func() { _, _ = g.State(), g.Ready() }); n != 0 {
				t.Errorf("%v: %v allocations", g.State(), n)
			}
		}
	})
}

// TestAttemptAllocations: a call adds what gobreaker allocates.
func TestAttemptAllocations(t *testing.T) {
	g := failover.New(failover.Options{Timeout: time.Hour})
	var a *failover.Attempt
	if n := testing.AllocsPerRun(1000, func() {
		a, _ = g.BeginAgain(a, nil)
		a.End(nil)
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

var sink int

func BenchmarkState(b *testing.B) {
	g := failover.New(failover.Options{})
	b.ReportAllocs()
	for b.Loop() {
		sink += int(g.State())
	}
}

func BenchmarkReady(b *testing.B) {
	g := failover.New(failover.Options{})
	b.ReportAllocs()
	for b.Loop() {
		if g.Ready() {
			sink++
		}
	}
}

// BenchmarkAttempt is what the breaker adds to a call to Redis.
func BenchmarkAttempt(b *testing.B) {
	g := failover.New(failover.Options{})
	b.ReportAllocs()
	var a *failover.Attempt
	for b.Loop() {
		a, _ = g.BeginAgain(a, nil)
		a.End(nil)
	}
}
