package tiered

import (
	"bytes"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
)

// callbackGoroutine is a goroutine that calls the user's code: the hooks, or the Logger.
type callbackGoroutine struct {
	id   atomic.Int64 // the goroutine's number; 0 before the first call
	busy atomic.Bool  // a call is under way
}

// call calls f. All calls are made on one goroutine.
func (c *callbackGoroutine) call(f func()) {
	if c.id.Load() == 0 {
		c.id.Store(goroutineID())
	}
	// A memory fault in f becomes a panic, like any other failure in it. The setting also marks the goroutine for
	// isCurrent.
	debug.SetPanicOnFault(true)
	c.busy.Store(true)
	defer c.busy.Store(false)
	f()
}

// isCurrent reports whether the current goroutine is the one of c, within a call.
//
// Go reveals a goroutine's number only in the text of its stack. That takes 5 to 20 µs, too much for each decision
// while a hook runs. The setting of SetPanicOnFault takes some nanoseconds to read, and hardly any other goroutine
// sets it. Only if it is set, the number is compared.
func (c *callbackGoroutine) isCurrent() bool {
	if !c.busy.Load() {
		return false
	}
	if !debug.SetPanicOnFault(true) {
		debug.SetPanicOnFault(false)
		return false
	}
	return goroutineID() == c.id.Load()
}

// goroutineID returns the number of the current goroutine.
func goroutineID() int64 {
	var room [64]byte
	text := room[:runtime.Stack(room[:], false)] // goroutine 18 [running]: …
	text = bytes.TrimPrefix(text, []byte("goroutine "))
	end := max(bytes.IndexByte(text, ' '), 0)
	id, _ := strconv.ParseInt(string(text[:end]), 10, 64)
	return id
}
