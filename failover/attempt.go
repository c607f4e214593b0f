package failover

import "time"

// Attempt is one attempt to reach the node. [Guard.Begin] returns it. Its methods may be called
// concurrently.
type Attempt struct {
	guard   *Guard
	expired func()
	timer   *time.Timer
	probe   bool
	began   time.Duration // since Options.Base
	lasts   time.Duration // how long it may last
	quiet   bool          // it has ended, and its timer will not call expire any more

	done func(error) // gobreaker's; nil once the attempt has ended; protected by the Guard's lock
}

// End ends the attempt with its result err, according to [Classify]. It reports false if the timer
// has ended the attempt before. In that case expired was called or is about to be.
func (a *Attempt) End(err error) bool {
	return a.end(Classify(err), err) // Classify calls methods of the error, so it runs without the lock
}

// Abort ends the attempt as a failure, unless it has ended. Defer it, so that a panic or
// runtime.Goexit ends the attempt at once and not only by its timer.
func (a *Attempt) Abort() { a.end(Unreachable, ErrAborted) }

func (a *Attempt) end(class Class, err error) bool {
	ended := a.finish(class, err)
	if ended {
		a.quiet = a.timer.Stop()
	}
	a.guard.deliver()
	return ended
}

// expire is called by the timer.
func (a *Attempt) expire() {
	if a.prolonged() || !a.finish(Unreachable, ErrTimeout) {
		return
	}
	defer a.guard.deliver() // callers that wait for an answer come first
	if a.expired != nil {
		a.expired()
	}
}

// prolonged reports whether the attempt may last longer, because the Guard's timeout was raised
// since. It sets the timer again then.
func (a *Attempt) prolonged() bool {
	g := a.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	timeout := time.Duration(g.timeout.Load())
	if a.done == nil || timeout <= a.lasts {
		return false
	}
	a.lasts = timeout
	a.timer.Reset(max(a.began+timeout-g.now(), 0))
	return true
}

// finish reports the outcome to gobreaker, and reports false if that was done before. gobreaker
// ignores a result that arrives after the breaker changed its state, because the result belongs to
// the former state.
func (a *Attempt) finish(class Class, err error) bool {
	g := a.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	done := a.done
	if done == nil {
		return false
	}
	a.done = nil
	g.class, g.err, g.nothingNew = class, err, a.saysNothingNew(class)
	done(err)
	g.err = nil
	if a.probe && g.halfOpen { // excluded: nothing is known, so the next attempt is a probe, without another wait
		g.setState(Open, err)
	}
	return true
}

// saysNothingNew reports whether the attempt fails with others: calls that are under way at one
// moment fail together when the node stands still, and in time that is one failure. A refusal that
// lasts needs no second one. The lock is held.
func (a *Attempt) saysNothingNew(class Class) bool {
	g := a.guard
	return g.State() == Closed && !class.success() && class != Misconfigured && a.began < g.failedAt && g.now() < g.failedAt+apart
}
