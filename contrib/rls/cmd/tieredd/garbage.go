package main

import (
	"os"
	"runtime"
	"runtime/debug"
)

// Garbage is collected for each gcRoom bytes of it, and not more often than at usualGC percent. At 100 percent of a small
// heap, each call would pay a tenth more for some MB less.
const (
	gcRoom  = 64 << 20
	usualGC = 400
	leastGC = 50
	readGC  = 25 // while a configuration is read, of which the old and the new one are there at once
)

// collectGarbage adapts the garbage collector to the heap, unless GOGC is set. While a configuration is read, garbage is
// collected early, because a large one leaves much of it. Afterwards what it took goes back to the system.
func collectGarbage(reads bool) {
	if os.Getenv("GOGC") != "" {
		return
	}
	if reads {
		debug.SetGCPercent(readGC)
		return
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	debug.SetGCPercent(int(min(max(100*gcRoom/max(m.HeapAlloc, 1), leastGC), usualGC)))
}
