package main

import (
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// bar shows the progress of long work, on a terminal only. Elsewhere it does nothing. Its methods may be called
// concurrently.
type bar struct {
	mu   sync.Mutex
	bar  *progressbar.ProgressBar // nil if nothing is shown
	over bool
}

// steps is the number of steps of a bar.
const steps = 1000

func (a *app) bar(what string) *bar {
	if !a.terminal {
		return &bar{}
	}
	return &bar{bar: progressbar.NewOptions(steps,
		progressbar.OptionSetWriter(a.problems), progressbar.OptionSetDescription(what),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetWidth(40),
		progressbar.OptionShowElapsedTimeOnFinish(),
	)}
}

// progress moves the bar: at of the whole is done.
func (b *bar) progress(at, of time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bar == nil || b.over || of <= 0 {
		return
	}
	// The last step belongs to done, so that the bar is removed once.
	_ = b.bar.Set(min(int(float64(at)/float64(of)*steps), steps-1)) // it fails only if nobody can see it
}

// done removes the bar.
func (b *bar) done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	if b.bar != nil {
		_ = b.bar.Finish()
	}
}
