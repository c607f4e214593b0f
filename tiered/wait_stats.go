package tiered

import (
	"errors"
	"sync"
	"time"
)

// waitStats are a policy's figures of its waiting callers.
type waitStats struct {
	mu      sync.Mutex
	waiting int64
	waited  int64
	gaveUp  int64
	time    time.Duration
	longest time.Duration
}

// beginWait counts that c has to wait, once.
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

// countEnd counts and reports the end of a wait, and returns err. A caller that was admitted or refused at once, as by
// Allow, did not wait. A caller that left because it could not be served in time gave up.
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

// end counts the end of a wait, and returns how many callers still wait.
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

// fill writes the figures into p.
func (w *waitStats) fill(p *PolicyStats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.Waiting, p.Waited, p.GaveUp, p.WaitTime, p.LongestWait = w.waiting, w.waited, w.gaveUp, w.time, w.longest
}
