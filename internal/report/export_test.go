package report

import "time"

// The bounds that the tests reach.
const (
	HookRoom = hookRoom
	Kinds    = kinds
)

// Made reports whether the counts of requests take memory: only those of requests of more than one
// token do.
func (r *Requests) Made() bool { return r.counts.Load() != nil }

// InVain are decisions that waited in vain.
type InVain struct{ inVain }

func (w *InVain) Add(waited, late time.Duration) { w.add(waited, late) }

func (w *InVain) ByProcess(longest time.Duration) bool { return w.byProcess(longest) }
