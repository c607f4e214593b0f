package tiered

import (
	"errors"
	"sync"
	"time"
)

// waits are a policy's figures of those who wait.
type waits struct {
	mu      sync.Mutex
	waiting int64
	waited  int64
	gaveUp  int64
	time    time.Duration
	longest time.Duration
}

// begin notes that s has to wait.
func (s *standing) begin() {
	l := s.limiter
	if s.since > 0 {
		return
	}
	s.since = max(l.group.now(), 1)
	l.waits.mu.Lock()
	defer l.waits.mu.Unlock()
	l.waits.waiting++
}

// ended notes how a wait ended. What was admitted or refused at once, as by Allow, was no wait; who leaves because it
// would be in vain gave up.
func (s *standing) ended(err error) error {
	var e *LimitedError
	if s.since == 0 && (err == nil || errors.As(err, &e) && !e.late) {
		return err
	}
	l := s.limiter
	end := WaitEvent{Policy: l.name, Key: s.key, Tokens: s.cost, Err: err}
	if s.since > 0 {
		end.Time = l.group.now() - s.since
	}
	end.Waiting = l.waits.end(end.Time, s.since > 0, err == nil)
	l.group.trace.wait(end)
	return err
}

// end counts the end of a wait, and reports how many still wait.
func (w *waits) end(t time.Duration, began, served bool) int64 {
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
func (w *waits) tell(p *PolicyStats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.Waiting, p.Waited, p.GaveUp, p.WaitTime, p.LongestWait = w.waiting, w.waited, w.gaveUp, w.time, w.longest
}
