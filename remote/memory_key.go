package remote

import (
	"strconv"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// memoryState is the model of one algorithm: what a key holds, and the script's steps on it once the arguments are
// checked and the call is not late. Each is a script in Go, step by step and in the same order; the reasons stand in
// the script. The scripts with leases have most steps in common: see memoryStep.
type memoryState interface {
	// run executes a step and answers it. It reports whether the script would have written, and for how many ms the key
	// then lives. Unwritten, the state is as before.
	run(s *memoryStep) (keep int64, written bool)

	// fields reports what is stored, as HGETALL does, or as ZRANGE does with scores.
	fields() map[string]string

	// clone returns a copy that shares nothing.
	clone() memoryState
}

// fresh makes a state in which nothing was counted.
var fresh = [lua.Algorithms]func() memoryState{
	lua.TokenBucket:   func() memoryState { return new(memoryBucket) },
	lua.SlidingLog:    func() memoryState { return new(memoryLog) },
	lua.FixedWindow:   func() memoryState { return new(memoryWindow) },
	lua.SlidingWindow: func() memoryState { return new(memoryBlocks) },
	lua.TokenBuckets:  func() memoryState { return new(memoryBuckets) },
}

// memoryKey is a key of the store and what it holds.
type memoryKey struct {
	name      string
	algorithm lua.Algorithm
	state     memoryState

	place   int   // in Memory.ring
	expires int64 // ms of the store's own clock: the last in which the key is there, as after PEXPIRE
}

// expired reports whether the key is gone at a time in µs of the store's clock. Redis compares whole milliseconds, and
// a key is still there in the one in which it expires.
func (k *memoryKey) expired(clock int64) bool { return clock/1000 > k.expires }

// decimal is a whole number as the scripts write it.
func decimal(x int64) string { return strconv.FormatInt(x, 10) }

// tooLate answers a call that is late, or that no limit can ever grant.
func tooLate(c *lua.Call, server int64) (lua.Reply, bool) {
	if c.Deadline > 0 && server >= c.Deadline {
		return lua.Reply{Code: lua.Late, Now: server}, true
	}
	if c.Min > c.LeastCap() {
		return lua.Reply{Code: lua.Never, Retry: -1, Now: server}, true
	}
	return lua.Reply{}, false
}

// guard is the rule for clocks of the keys that keep a time of their own: last is the newest of it, behind how far the
// server's clock was set back. A small step back is waited out, by not letting the result pass below last; a large one
// is believed.
func guard(last, server, behind int64) (behindNow int64, stepped bool) {
	if last-server-behind > lua.MaxBack.Microseconds() {
		return last - server, true
	}
	return behind, false
}

// argumentError refuses a call for its argument of a number.
func argumentError(n int) error { return &ScriptError{Text: "RLARG argument " + strconv.Itoa(n)} }
