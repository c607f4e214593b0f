package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// stream is a made-up run of ten tokens per second and bursts of ten: outage from 10 s to 20 s, end at 30 s.
type stream struct{ *meter }

func newStream() stream {
	s := Outage()
	s.Hot.Policy.Limit, s.Cold.Policy.Limit, s.Cold.Keys = tiered.PerSecond(10), tiered.PerSecond(1).WithBurst(2), 2
	s.From, s.To, s.Length = 10*time.Second, 20*time.Second, 30*time.Second
	return stream{newMeter(&s, time.Now())}
}

// hot makes n requests for the hot key at an instant, of which the first are admitted.
func (s stream) hotAt(at time.Duration, n, admitted int) {
	for i := range n {
		d := tiered.Decision{Reason: tiered.Limited}
		if i < admitted {
			d = tiered.Decision{Allowed: true, Reason: tiered.Granted}
		}
		s.decidedAt(at, s.offerAt(at, 0, -1), d)
	}
}

func TestMeterPhases(t *testing.T) {
	s := newStream()
	s.hotAt(0, 15, 10)
	s.hotAt(10*time.Second-1, 3, 3)
	s.hotAt(10*time.Second, 12, 9) // the ideal bucket has 7 and a bit left
	s.hotAt(20*time.Second, 5, 0)
	s.hotAt(31*time.Second, 1, 1) // after the end: it belongs to the last phase
	for i, want := range []Phase{
		{Name: "before", Offered: 18, Admitted: 13, Limit: 13},
		{Name: "during", Offered: 12, Admitted: 9, Limit: 7},
		{Name: "after", Offered: 6, Admitted: 1, Limit: 6},
	} {
		p := s.result()[i]
		if p.Name != want.Name || p.Offered != want.Offered || p.Admitted != want.Admitted || p.Limit != want.Limit {
			t.Errorf("got %+v, want %+v", p, want)
		}
	}
}

func TestMeterOver(t *testing.T) {
	s := newStream()
	l := tiered.PerSecond(10)
	whole, across := s.watch(l, 0, 30*time.Second), s.watch(l, 9*time.Second, 11*time.Second)
	s.hotAt(time.Second, 10, 10) // exactly the burst
	s.hotAt(9*time.Second, 8, 8)
	s.hotAt(10*time.Second, 15, 15) // 5 beyond the burst, and 3 that second 9 had used
	s.hotAt(25*time.Second, 10, 10)
	for i, want := range []float64{0, 5, 0} {
		if p := s.result()[i]; p.Over != want {
			t.Errorf("%s: over by %g, want %g", p.Name, p.Over, want)
		}
	}
	// 8 + 15 in one second: 23 − 10 − 10.
	if whole.over() != 5 || across.over() != 5 {
		t.Errorf("over by %g in all and %g across, want 5", whole.over(), across.over())
	}
	s.hotAt(25*time.Second+100*time.Millisecond, 9, 9) // 19 in 0.1 s: 8 beyond
	if whole.over() != 8 || across.over() != 5 || s.result()[2].Over != 8 {
		t.Errorf("over by %g in all, %g across, %g after", whole.over(), across.over(), s.result()[2].Over)
	}
}

// An interval that begins in one phase and ends in the next is in no phase, but in the run.
func TestMeterOverAcrossPhases(t *testing.T) {
	s := newStream()
	whole := s.watch(tiered.PerSecond(10), 0, 30*time.Second)
	s.hotAt(10*time.Second-1, 10, 10)
	s.hotAt(10*time.Second, 10, 10)
	if over := whole.over(); over < 9.99 || over > 10 {
		t.Errorf("over by %g, want almost 10", over)
	}
	for _, p := range s.result() {
		if p.Over != 0 {
			t.Errorf("%s: over by %g", p.Name, p.Over)
		}
	}
}

func TestMeterColdKeys(t *testing.T) {
	s := newStream()
	cold := func(at time.Duration, key int, r tiered.Reason, allowed bool) {
		s.decidedAt(at+3*time.Millisecond, s.offerAt(at, 0, key), tiered.Decision{Allowed: allowed, Reason: r})
	}
	cold(11*time.Second, 0, tiered.Granted, true)
	cold(11*time.Second, 0, tiered.Unavailable, false) // within the limit, and refused
	cold(11*time.Second, 0, tiered.Limited, false)     // the third at once: rightly refused
	cold(11*time.Second, 1, tiered.ShareSpent, false)
	cold(20*time.Second-1, 1, tiered.Unavailable, false) // made during the outage, answered after it
	if p := s.result()[1]; p.Within != 4 || p.Denied != 3 || p.Longest != 3*time.Millisecond || p.Offered != 0 {
		t.Errorf("%+v", p)
	}
	if p := s.result()[2]; p.Within != 0 || p.Denied != 0 || p.Longest != 0 {
		t.Errorf("%+v", p)
	}
}

func TestMeterTrace(t *testing.T) {
	one, two, other := newStream(), newStream(), newStream()
	g, l := tiered.Decision{Allowed: true, Reason: tiered.Granted}, tiered.Decision{Reason: tiered.Limited}
	for _, s := range []stream{one, two, other} {
		a, b := s.offerAt(5, 1, -1), s.offerAt(5, 2, -1)
		switch s {
		case one:
			s.decidedAt(5, a, g)
			s.decidedAt(5, b, l)
		case two: // the same in another order
			s.decidedAt(5, b, l)
			s.decidedAt(5, a, g)
		case other: // the same numbers, the other way round
			s.decidedAt(5, a, l)
			s.decidedAt(5, b, g)
		}
	}
	if one.trace != two.trace || one.trace == other.trace {
		t.Errorf("traces %x, %x and %x", one.trace, two.trace, other.trace)
	}
}

func TestDice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := time.Now()
		a, b, c := newDice(1, "a", base), newDice(1, "a", base), newDice(1, "c", base)
		_, _ = a.uniform(), a.uniform() // what was drawn before does not matter
		var sum float64
		for range 10_000 {
			time.Sleep(time.Nanosecond)
			x, y := a.uniform(), b.uniform()
			if x != y || x < 0 || x >= 1 {
				t.Fatalf("%g and %g", x, y)
			}
			if z := a.uniform(); z == x || z == c.uniform() {
				t.Fatalf("%g again", z)
			}
			sum += x
		}
		if mean := sum / 10_000; mean < 0.49 || mean > 0.51 { // σ is 0.003
			t.Errorf("mean %g", mean)
		}
	})
}
