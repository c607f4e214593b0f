package remote

import (
	"strconv"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// memoryState is what a key holds under one algorithm, with that algorithm's script in Go. It runs once the
// arguments are checked and the call is not late. The steps are the script's, in the same order, and the script
// states the reasons. The scripts with leases share most steps: see memoryStep.
type memoryState interface {
	// run executes a step and writes its reply. It reports whether the script would have written, and for how many
	// ms the key then lives. If it would not have written, the state is unchanged.
	run(s *memoryStep) (keep int64, written bool)

	// fields returns what is stored, as HGETALL does, or as ZRANGE with scores does.
	fields() map[string]string

	// clone returns a copy that shares nothing.
	clone() memoryState
}

// fresh makes a state in which nothing is counted.
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

	index   int   // index in Memory.ring
	expires int64 // the last ms of the store's own clock in which the key exists, as after PEXPIRE
}

// expired reports whether the key is gone at a time in µs of the store's clock. Redis compares whole milliseconds,
// and a key still exists in the millisecond in which it expires.
func (k *memoryKey) expired(clock int64) bool { return clock/1000 > k.expires }

// decimal returns a whole number as the scripts write it.
func decimal(x int64) string { return strconv.FormatInt(x, 10) }

// earlyReply answers a call that is late, or that no limit can ever grant.
func earlyReply(c *lua.Call, server int64) (lua.Reply, bool) {
	if c.Deadline > 0 && server >= c.Deadline {
		return lua.Reply{Code: lua.Late, Now: server}, true
	}
	if c.Min > c.LeastCap() {
		return lua.Reply{Code: lua.Never, Retry: -1, Now: server}, true
	}
	return lua.Reply{}, false
}

// guard handles a server clock that was set back, for keys that keep a time of their own. last is the newest time
// of the key, and behind is how far the server's clock was set back so far. A small step back is waited out: the
// caller keeps the key's time at last. A large step is believed.
func guard(last, server, behind int64) (behindNow int64, stepped bool) {
	if last-server-behind > lua.MaxBack.Microseconds() {
		return last - server, true
	}
	return behind, false
}

// argumentError is the script's refusal of its n-th argument.
func argumentError(n int) error { return &ScriptError{Text: "RLARG argument " + strconv.Itoa(n)} }
