package main

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Garbage is collected for each gcRoom bytes of it, and not more often than at usualGC percent. At
// 100 percent of a small heap, each call would pay a tenth more for some MB less.
const (
	gcRoom  = 64 << 20
	usualGC = 400
	leastGC = 50
	readGC  = 25 // while a configuration is read, of which the old and the new one are there at once
)

// garbage adapts the garbage collector to the heap, unless GOGC is set.
type garbage struct {
	mu      sync.Mutex
	reads   bool
	percent int
	watches bool
}

var collected garbage

// collectGarbage says whether a configuration is read. Meanwhile garbage is collected early,
// because a large one leaves much of it. Afterwards what it took goes back to the system.
func collectGarbage(reads bool) {
	if os.Getenv("GOGC") != "" {
		return
	}
	g := &collected
	g.mu.Lock()
	g.reads = reads
	watches := g.watches
	g.watches = true
	g.mu.Unlock()
	if !reads {
		debug.FreeOSMemory()
	}
	g.adapt()
	if !watches {
		g.watch()
	}
}

// watch adapts the collector after each collection: keys come and go, and 400 percent of a large
// heap would be far more than gcRoom.
func (g *garbage) watch() {
	runtime.AddCleanup(new([64]byte), func(struct{}) { // once nothing refers to it, which a collection finds
		g.adapt()
		g.watch()
	}, struct{}{})
}

// adapt sets the percentage by what the last collection left.
func (g *garbage) adapt() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	g.mu.Lock()
	defer g.mu.Unlock()
	percent := percentOf(live[0].Value.Uint64())
	if g.reads {
		percent = readGC
	}
	if percent != g.percent { // it stops the world
		g.percent = percent
		debug.SetGCPercent(percent)
	}
}

// percentOf returns the percentage at so many bytes of live heap.
func percentOf(live uint64) int { return int(min(max(100*gcRoom/max(live, 1), leastGC), usualGC)) }

// limitMemory keeps the process within nine tenths of the memory that a container has, unless
// GOMEMLIMIT is set. The rest is for what Go does not count.
func limitMemory(log *slog.Logger, container memlimit.Provider) {
	before := debug.SetMemoryLimit(-1)
	limit, err := memlimit.Set(memlimit.WithProvider(container))
	switch {
	case err != nil: // as outside of a container
		log.Debug("GOMEMLIMIT is not set, and the memory of a container is not known", "error", err)
	case limit != before:
		log.Info("GOMEMLIMIT is not set: it is taken from the memory of the container", "GOMEMLIMIT", fmt.Sprint(limit>>20, "MiB"))
	}
}
