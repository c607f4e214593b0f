package failover

import (
	"errors"
	"testing"
	"time"
)

// made returns a guard in each state that a decision may meet.
func made(t testing.TB) map[string]*Guard {
	guards := map[string]*Guard{}
	for _, name := range []string{"closed", "open", "probing"} {
		g := New(Options{Timeout: time.Hour})
		guards[name] = g
		if name == "closed" {
			continue
		}
		for range 3 {
			a, _ := g.Begin(nil)
			a.End(errors.New("down"))
		}
		if name == "probing" {
			g.probeAt.Store(0)
			g.mu.Lock()
			g.setState(Probing, nil)
			g.mu.Unlock()
		}
		if g.State().String() != name {
			t.Fatalf("%v, want %s", g.State(), name)
		}
	}
	return guards
}

// TestAllocations: what every decision asks allocates nothing.
func TestAllocations(t *testing.T) {
	for name, g := range made(t) {
		if n := testing.AllocsPerRun(1000, func() { _, _ = g.State(), g.Ready() }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestAttemptAllocations: a call adds what gobreaker allocates.
func TestAttemptAllocations(t *testing.T) {
	g := New(Options{Timeout: time.Hour})
	var a *Attempt
	if n := testing.AllocsPerRun(1000, func() {
		a, _ = g.BeginAgain(a, nil)
		a.End(nil)
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

var sink int

func BenchmarkState(b *testing.B) {
	g := New(Options{})
	b.ReportAllocs()
	for b.Loop() {
		sink += int(g.State())
	}
}

func BenchmarkReady(b *testing.B) {
	for name, g := range made(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if g.Ready() {
					sink++
				}
			}
		})
	}
}

// BenchmarkAttempt is what the breaker adds to a call to Redis.
func BenchmarkAttempt(b *testing.B) {
	g := New(Options{})
	b.ReportAllocs()
	var a *Attempt
	for b.Loop() {
		a, _ = g.BeginAgain(a, nil)
		a.End(nil)
	}
}
