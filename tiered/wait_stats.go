package tiered

import (
	"errors"
	"sync"
	"time"
)

// waits are a policy's figures of those who wait.
type waitStats struct {
	mu      sync.Mutex
	waiting int64
	waited  int64
	gaveUp  int64
	time    time.Duration
	longest time.Duration
}

// begin notes that s has to wait.
func (c *queuedCaller) beginWait() {
	l := c.limiter
	if c.since > 0 {
		return
	}
	c.since = max(l.group.now(), 1)
	l.waitStats.mu.Lock()
	defer l.waitStats.mu.Unlock()
	l.waitStats.waiting++
}

// ended notes how a wait ended. What was admitted or refused at once, as by Allow, was no wait; who leaves because it
// would be in vain gave up.
func (c *queuedCaller) countEnd(err error) error {
	var e *LimitedError
	if c.since == 0 && (err == nil || errors.As(err, &e) && !e.late) {
		return err
	}
	l := c.limiter
	end := WaitEvent{Policy: l.name, Key: c.key, Tokens: c.cost, Err: err}
	if c.since > 0 {
		end.Time = l.group.now() - c.since
	}
	end.Waiting = l.waitStats.end(end.Time, c.since > 0, err == nil)
	l.group.trace.wait(end)
	return err
}

// end counts the end of a wait, and reports how many still wait.
func (w *waitStats) end(t time.Duration, began, served bool) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if began {
		w.waiting--
	}
	if served {
		w.waited++
	} else {
		w.gaveUp++
	}
	w.time += t
	w.longest = max(w.longest, t)
	return w.waiting
}

// tell writes the figures into a policy's.
func (w *waitStats) fill(p *PolicyStats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.Waiting, p.Waited, p.GaveUp, p.WaitTime, p.LongestWait = w.waiting, w.waited, w.gaveUp, w.time, w.longest
}
