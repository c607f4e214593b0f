package tiered

import (
	"bytes"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
)

// caller is a goroutine that calls what the user gave: the hooks, or the Logger.
type caller struct {
	id   atomic.Int64 // the goroutine's number; 0 before the first call
	busy atomic.Bool  // a call is under way
}

// call calls f. All calls are made on one goroutine.
func (c *caller) call(f func()) {
	if c.id.Load() == 0 {
		c.id.Store(goroutine())
	}
	// A fault of f becomes a panic, like all else that goes wrong in it, and inside has something to look for.
	debug.SetPanicOnFault(true)
	c.busy.Store(true)
	defer c.busy.Store(false)
	f()
}

// inside reports whether it was called by what is being called, on that goroutine.
//
// Go tells a goroutine's number only in the text of its stack, which takes 5 to 20 µs, and a decision cannot afford that
// whenever some hook runs. What a goroutine does at a fault can be asked for in some nanoseconds, and hardly any but a caller
// has it set: only then is the number looked at.
func (c *caller) inside() bool {
	if !c.busy.Load() {
		return false
	}
	if !debug.SetPanicOnFault(true) {
		debug.SetPanicOnFault(false)
		return false
	}
	return goroutine() == c.id.Load()
}

// goroutine is the number of this goroutine.
func goroutine() int64 {
	var room [64]byte
	text := room[:runtime.Stack(room[:], false)] // goroutine 18 [running]: …
	text = bytes.TrimPrefix(text, []byte("goroutine "))
	end := max(bytes.IndexByte(text, ' '), 0)
	id, _ := strconv.ParseInt(string(text[:end]), 10, 64)
	return id
}
