package report

import (
	"sync"
	"time"
)

// Waits are figures of waiting callers. All methods may be called concurrently.
type Waits struct {
	mu      sync.Mutex
	figures WaitFigures
}

// WaitFigures are what Waits counted.
type WaitFigures struct {
	Waiting int64         // callers that wait now
	Waited  int64         // that were admitted
	GaveUp  int64         // that were not
	Time    time.Duration // total time of Waited and GaveUp
	Longest time.Duration
}

// Begin counts that a caller has to wait.
func (w *Waits) Begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.figures.Waiting++
}

// End counts the end of a wait of length t, and returns how many callers still wait. began says
// that Begin counted it: a caller may also give up at once.
func (w *Waits) End(t time.Duration, began, served bool) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := &w.figures
	if began {
		f.Waiting--
	}
	if served {
		f.Waited++
	} else {
		f.GaveUp++
	}
	f.Time += t
	f.Longest = max(f.Longest, t)
	return f.Waiting
}

// Figures returns the figures.
func (w *Waits) Figures() WaitFigures {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.figures
}
