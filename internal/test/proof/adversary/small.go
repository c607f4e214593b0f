package adversary

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// SmallScope is a scope that is small enough to be walked through, and how deep.
type SmallScope struct {
	*Scope
	Depth int
}

// tick is half the life of a lease, in percent of the longest: the step of time here.
const tick = 15

// SmallScopes have a burst of two, one token per tick, and leases of one token that live for two ticks.
func SmallScopes() []SmallScope {
	wire := []Action{
		{Execute, 0, 0},
		{Execute, 0, 1},
		{Repeat, 0, 0},
		{Deliver, 0, 0},
		{Deliver, 0, 1},
		{Outsider, 0, 0},
		{Wait, 0, tick},
	}
	plus := func(of []Action, more ...Action) []Action { return append(append([]Action(nil), of...), more...) }
	all := []SmallScope{
		{Depth: 8, Scope: &Scope{
			Name: "one process", Bursts: []int64{2}, Warm: true,
			Actions: plus(wire, Action{Ask, 0, 1}, Action{Probe, 0, 0}, Action{Send, 0, 0}, Action{GiveUp, 0, 0},
				Action{Look, 0, 0}, Action{Edge, 0, 0}),
		}},
		{Depth: 7, Scope: &Scope{
			Name: "one process, cold, that cancels", Bursts: []int64{2},
			Actions: plus(wire, Action{Ask, 0, 1}, Action{Ask, 0, 2}, Action{Leave, 0, 0}, Action{Send, 0, 0},
				Action{GiveUp, 0, 0},
				Action{Cancel, 0, -1}, Action{Look, 0, 0}, Action{Evict, 0, 0}),
		}},
		{Depth: 7, Scope: &Scope{
			Name: "two processes", Bursts: []int64{2, 2}, Warm: true,
			Actions: plus(wire, Action{Ask, 0, 1}, Action{Send, 0, 0}, Action{GiveUp, 0, 0}, Action{Crash, 0, 0},
				Action{Ask, 1, 1}, Action{Send, 1, 0}, Action{Evict, 1, 0}),
		}},
		{Depth: 7, Scope: &Scope{
			Name: "a renewal late in the lease", Bursts: []int64{2}, Warm: true, Prelude: lateRenewal(1),
			Actions: plus(wire, Action{Ask, 0, 1}, Action{Probe, 0, 0}, Action{Send, 0, 0}, Action{GiveUp, 0, 0},
				Action{Evict, 0, 0}, Action{Cancel, 0, 0}, Action{Edge, 0, 0}),
		}},
		// Six ticks after the last take the bucket is full, and the server has forgotten it.
		{Depth: 7, Scope: &Scope{
			Name: "what comes back after the bucket was full", Bursts: []int64{2}, NoLease: true,
			Prelude: []Action{{Ask, 0, 1}, {Send, 0, 0}, {Execute, 0, 0}, {Deliver, 0, 0}},
			Actions: []Action{
				{Ask, 0, 1},
				{Cancel, 0, 0},
				{Cancel, 0, -1},
				{Send, 0, 0},
				{Execute, 0, 0},
				{Repeat, 0, 0},
				{Deliver, 0, 0},
				{Outsider, 0, 0},
				{Wait, 0, tick},
				{Wait, 0, 6 * tick},
				{Reset, 0, 0},
			},
		}},
	}
	for _, s := range all {
		s.FailMode, s.Tokens, s.Per, s.Timeout = local.FailClosed, 1, 600*time.Millisecond, 600*time.Millisecond
		s.Period = 250 * time.Millisecond
	}
	return all
}
