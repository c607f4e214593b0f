package adversary

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// TestWhatBrokenAssumptionsCost breaks what the proof assumes, one assumption at a time, and
// compares what was admitted beyond the bound with the price in docs/internals/proof.md. -v prints
// the worst that was seen.
func TestWhatBrokenAssumptionsCost(t *testing.T) {
	// Three processes at work, so that all of the burst is out when it happens; r·1 s is 4 tokens.
	base := Scope{
		Bursts: []int64{24, 24, 24}, Tokens: 4, Per: second, Warm: true, FailMode: local.FailClosed,
		Period: 250 * time.Millisecond, Timeout: 600 * time.Millisecond,
	}
	accidents := []struct {
		name    string
		price   string
		actions []Action
		drift   float64
		free    bool // it costs nothing
	}{
		{name: "nothing happens", free: true},
		{name: "clocks whose rates differ by 0.9 % from the server's", drift: 0.009, free: true},
		{name: "the server's clock is set back by 0.4 s", actions: []Action{{Back, 0, 400}}, free: true},
		{name: "the server's clock is set back by an hour", actions: []Action{{Back, 0, 3600e3}}, free: true},
		{name: "a process dies with its leases", actions: []Action{{Crash, 0, 0}, {Crash, 1, 0}}, free: true},
		{
			name: "the server's clock jumps ahead by 2 s", price: "min(burst, rate x 2 s)",
			actions: []Action{{Forward, 0, 2000}},
		},
		{name: "the bucket is lost", price: "one burst", actions: []Action{{Vanish, 0, 0}}},
		{
			name: "a replica is promoted that missed the last writes", price: "one burst",
			actions: []Action{{Copy, 0, 0}, {Promote, 0, 0}},
		},
		{
			name: "a process' machine sleeps for twice a lease", price: "what it has, puts back or is being granted",
			actions: []Action{{Freeze, 0, 60}, {Suspend, 0, 0}},
		},
		{
			name:  "a process is cloned, and its twin notices before it asks",
			price: "what it has, puts back or is being granted", actions: []Action{{Clone, 0, 0}},
		},
	}
	schedules := 6000
	if testing.Short() {
		schedules = 2000
	}
	for i, a := range accidents {
		t.Run(a.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := base
				s.Name, s.Drift = a.name, a.drift
				for p := range s.Bursts {
					s.Actions = append(s.Actions, times(6, Action{Ask, p, 1}, Action{Rush, p, 0})...)
					s.Actions = append(s.Actions, Action{Ask, p, 2}, Action{Send, p, 0}, Action{Look, p, 0},
						Action{Cancel, p, -1})
				}
				s.Actions = append(s.Actions, times(9, Action{Flow, 0, 0})...)
				s.Actions = append(s.Actions, Action{Wait, 0, 1}, Action{Wait, 0, 3}, Action{Wait, 0, 10},
					Action{Edge, 0, 0},
					Action{Outsider, 0, 0}, Action{Execute, 0, 0}, Action{Deliver, 0, 0})
				s.Actions = append(s.Actions, times(2, a.actions...)...)
				worst, conceded, happened := 0.0, int64(0), 0
				for seed := range uint64(schedules) {
					r := Random([]*Scope{&s}, seed+uint64(i)<<32, 120)
					w := New(&s, OnMemory(), "b", r.Seed)
					once(r, w)
					if w.Fault != "" {
						t.Fatalf("%s\n%s", w.Fault, Describe(r, Place{OnMemory(), "b"}))
					}
					if l := w.limits[0]; l.worst > worst {
						worst, conceded = l.worst, l.conceded
					}
					if w.damaged {
						happened++
					}
				}
				verdict := "nothing, and nothing was seen"
				if !a.free {
					verdict = fmt.Sprintf("%s; worst seen %.1f tokens of %d", a.price, worst, conceded)
					if worst == 0 || happened < schedules/4 {
						t.Errorf("it cost nothing: this shows nothing")
					}
				} else if worst > rounding {
					t.Errorf("over by %v", worst)
				}
				t.Logf("%s: %s", a.name, verdict)
			})
		})
	}
}

// once plays a schedule in which an accident happens once.
func once(s Schedule, w *World) {
	for _, choice := range s.Choices {
		a := s.Scope.action(choice)
		switch a.Verb {
		case Forward, Vanish, Promote, Freeze, Clone:
			if w.damaged {
				continue
			}
		}
		w.Do(a)
	}
	w.shutDown(s.Seed%2 == 0)
}
