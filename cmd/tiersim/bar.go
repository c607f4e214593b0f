package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// bar shows the progress of long work: as a bar on a terminal, elsewhere as a line every lineEvery. Its methods may be
// called concurrently.
type bar struct {
	mu   sync.Mutex
	bar  *progressbar.ProgressBar // on a terminal
	out  io.Writer                // elsewhere
	what string
	next time.Time // no line before this time
	over bool
}

// steps is the number of steps of a bar.
const steps = 1000

// lineEvery keeps a log short and tells that the program is alive.
const lineEvery = 10 * time.Second

func (a *app) bar(what string) *bar {
	if !a.terminal {
		return &bar{out: a.problems, what: what, next: time.Now().Add(lineEvery)}
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
	if b.over || of <= 0 {
		return
	}
	if b.bar == nil {
		if now := time.Now(); !now.Before(b.next) {
			b.next = now.Add(lineEvery)
			fmt.Fprintf(b.out, "tiersim: %s: %d %%\n", b.what, int(float64(at)/float64(of)*100))
		}
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
