package benchmarks

import (
	"context"
	"slices"
	"testing"
)

// Answer is what a contestant made of one request: bits, so that they can be counted without a branch.
type Answer uint8

// The bits of an Answer.
const (
	Admitted Answer = 1 << iota
	Asked           // Redis was waited for; only ours says so
	Failed          // an error, or an answer of the wrong sort
	answers         // number of combinations
)

// Decide decides one request. It may be called concurrently.
type Decide func(ctx context.Context, key string) Answer

// Contestant is a limiter that takes part.
type Contestant struct {
	Name string
	Make func(tb testing.TB, s *Server, l Limit) Decide // s is nil without Redis; what is left to close is up to tb.Cleanup

	Redis bool // it gets a server
	Ours  bool // it says Asked, and holds the in-process expectations

	Asks bool // ours, made to wait for Redis at each decision

	// Commands is the fewest Redis commands per admitted decision. With fewer it has quietly fallen back on itself, and
	// what was measured would be something else. 0 for who need not ask.
	Commands float64

	// Falters leaves Redis alone for a while after a start, though it is well, and has to be waited for.
	Falters bool

	Loads []string // that it takes part in

	// Alone leaves out the hot key with more than one goroutine, where it answers with errors.
	Alone bool

	// Refuses is the share of decisions that it may refuse without reason when several goroutines ask for the hot key:
	// it does so, and to leave it out would be to hide it. What it refuses is reported.
	Refuses float64
}

// Plays reports whether the contestant takes part in a load with so many goroutines.
func (c Contestant) Plays(l Load, goroutines int) bool {
	if !slices.Contains(c.Loads, l.Name) {
		return false
	}
	if c.Alone && l.Name == Hot.Name && goroutines > 1 {
		return false
	}
	// Two goroutines ask how a limiter in the process bears company; over the network, 16 do.
	return goroutines != 2 || !c.Redis || c.Ours
}

// Contestants are all of them, in the order of the tables.
var Contestants = slices.Concat(ours, inProcess, overRedis)

// Named is the contestant of that name; there must be one.
func Named(tb testing.TB, name string) Contestant {
	tb.Helper()
	i := slices.IndexFunc(Contestants, func(c Contestant) bool { return c.Name == name })
	if i < 0 {
		tb.Fatalf("no contestant %q", name)
	}
	return Contestants[i]
}
