package benchmarks

import (
	"context"
	"slices"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Answer is a contestant's answer to one request. Its bits can be counted without a branch.
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

// Contestant is a limiter that is measured.
type Contestant struct {
	Name string
	// s is nil without Redis; what is left to close is up to tb.Cleanup
	Make func(tb testing.TB, s *Server, l tiered.Limit) Decide

	Redis bool // it gets a server
	Ours  bool // it says Asked, and holds the in-process expectations

	Asks bool // ours, made to wait for Redis at each decision

	// Commands is the fewest Redis commands per admitted decision. With fewer the contestant has
	// silently fallen back on a limiter in the process, and something else would be measured. 0 if
	// it need not call Redis.
	Commands float64

	KeysPer int64 // Redis keys for each key that it is asked for; 0 is 1

	Loads []string // that it takes part in

	// Refuses is the part of decisions that it may refuse without reason if several goroutines use
	// the hot key. It does so, and leaving it out would hide that. The number is reported.
	Refuses float64
}

// Plays reports whether the contestant takes part in a load with that many goroutines.
func (c Contestant) Plays(l Load, goroutines int) bool {
	if !slices.Contains(c.Loads, l.Name) {
		return false
	}
	// Two goroutines show how a limiter in the process copes with contention; over the network, 16
	// do.
	return goroutines != 2 || !c.Redis || c.Ours
}

// Contestants are all contestants, in the order of the tables.
var Contestants = slices.Concat(ours, inProcess, overRedis)
