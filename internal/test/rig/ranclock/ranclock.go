// Package ranclock has a clock for tests that judge real time. It does not count the time in which
// a busy machine ran something else.
package ranclock

import (
	"sync"
	"time"
)

// A Clock looks at the time once in a tick. Of the time between two looks it counts no more than
// most: a process that is late by more did not run.
const (
	tick = time.Millisecond
	most = 2 * tick
)

// TB is what New needs of a testing.TB: programs that are no tests import packages of this rig too.
type TB interface {
	Cleanup(f func())
}

// Clock counts the time in which this process ran. It is safe for concurrent use.
type Clock struct {
	mu   sync.Mutex
	ran  time.Duration
	last time.Time
}

// New returns a clock that goes until the end of the test.
func New(t TB) *Clock {
	c := &Clock{last: time.Now()}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(tick):
				c.Now()
			}
		}
	}()
	t.Cleanup(func() { close(end); <-ended })
	return c
}

// Now returns for how long the process has run since New. It is never more than the real time.
func (c *Clock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.ran += min(now.Sub(c.last), most)
	c.last = now
	return c.ran
}

// Since returns for how long the process has run since then.
func (c *Clock) Since(then time.Duration) time.Duration { return c.Now() - then }
