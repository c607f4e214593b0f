package failover

import "time"

// Attempt is one attempt to reach the node, from [Guard.Begin]. Its methods may be called concurrently.
type Attempt struct {
	guard   *Guard
	expired func()
	timer   *time.Timer
	probe   bool

	done func(error) // gobreaker's; nil when the attempt has ended; under the Guard's lock
}

// End ends the attempt by what came of it, according to [Classify]. It reports false when the attempt had ended before:
// by the timer, and then expired was called or is about to be.
func (a *Attempt) End(err error) bool {
	return a.end(Classify(err), err) // which calls methods of the error, so not under the lock
}

// Abort ends the attempt as a failure, unless it has ended. Defer it, so that a panic or runtime.Goexit ends the attempt
// at once and not only by its timer.
func (a *Attempt) Abort() { a.end(Unreachable, ErrAborted) }

func (a *Attempt) end(class Class, err error) bool {
	ended := a.settle(class, err)
	if ended {
		a.timer.Stop()
	}
	a.guard.tell()
	return ended
}

// expire is run by the timer.
func (a *Attempt) expire() {
	if !a.settle(Unreachable, ErrTimeout) {
		return
	}
	defer a.guard.tell() // those who wait for an answer come first
	if a.expired != nil {
		a.expired()
	}
}

// settle tells gobreaker the outcome, unless that has been done. A result that comes after the breaker changed its state
// concerns what was before; gobreaker ignores it.
func (a *Attempt) settle(class Class, err error) bool {
	g := a.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	done := a.done
	if done == nil {
		return false
	}
	a.done = nil
	g.class, g.err = class, err
	done(err)
	g.err = nil
	if a.probe && g.half { // excluded: nothing is known, so the next attempt is a probe, without another open time
		g.become(Open, err)
	}
	return true
}
