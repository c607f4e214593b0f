package faultnet

import (
	"errors"
	"os"
	"time"
)

// Write writes p, or does to it what the faults want.
func (c *conn) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.writer {
		if err := c.stopped("write", c.writeDeadline); err != nil {
			return 0, err
		}
		c.wait(c.writeDeadline)
	}
	if err := c.stopped("write", time.Time{}); err != nil {
		return 0, err
	}
	c.writer = true
	defer func() {
		c.writer = false
		c.cond.Broadcast()
	}()

	f := c.net.faults.Load()
	// Drawn whatever the faults are, so that what happens to the next Write does not depend on what they were for this.
	before, after, spread := c.writeChance.Float64(), c.writeChance.Float64(), c.writeChance.Float64()
	if before < f.CutBefore {
		c.cut(&c.net.cutBefore)
		return 0, c.stopped("write", time.Time{})
	}
	doomed := after < f.CutAfter
	for {
		f = c.net.faults.Load()
		if !c.torn && !f.HoldOut && !f.late() && !c.out.waiting() && !c.carrying {
			m, again, err := c.writeInPlace(p[n:], doomed)
			n += m
			if !again || n == len(p) {
				return n, err
			}
			continue
		}
		if err := c.stopped("write", c.writeDeadline); err != nil {
			return n, err
		}
		switch {
		case c.outErr != nil:
			return n, c.outErr
		case len(p) == 0:
			return 0, nil
		case c.torn || f.HoldOut:
			c.torn = true
			c.net.lost.Add(1)
			return len(p), nil
		case c.out.full():
			c.wait(c.writeDeadline)
		default:
			if n += c.send(p[n:], spread, doomed, f); n == len(p) {
				return n, nil
			}
		}
	}
}

// writeInPlace writes the inner connection for a caller, who tries again with the rest when the faults changed meanwhile.
func (c *conn) writeInPlace(p []byte, doomed bool) (n int, again bool, err error) {
	c.writing, c.dooming = true, doomed
	c.mu.Unlock()
	n, err = c.inner.Write(p)
	c.mu.Lock()
	c.writing, c.dooming = false, false
	c.doomed = c.doomed || doomed && err == nil
	kicked := c.kickedOut
	if kicked {
		c.kickedOut = false
		_ = c.inner.SetWriteDeadline(c.writeDeadline)
	}
	if err == nil {
		return n, false, nil
	}
	if stop := c.stopped("write", time.Time{}); stop != nil {
		return n, false, stop
	}
	if kicked && errors.Is(err, os.ErrDeadlineExceeded) {
		return n, true, nil // the deadline, if it has passed as well, is looked at again
	}
	return n, false, err
}

// send puts the beginning of p into the lane, which has room, and returns how much of it.
func (c *conn) send(p []byte, spread float64, doomed bool, f *Faults) int {
	n := min(len(p), window-c.out.bytes)
	if f.Rate > 0 {
		n = min(n, segment)
	}
	c.out.put(piece{data: append([]byte(nil), p[:n]...), spread: spread, doomed: doomed && n == len(p)}, time.Now(), f)
	if f.late() {
		c.net.late.Add(1)
	}
	c.arm()
	return n
}

// arm has what is first in the lane carried when it is due.
func (c *conn) arm() {
	if c.carrying || c.ended || !c.out.waiting() {
		return
	}
	wait := time.Until(c.out.pieces[0].due)
	if c.carrier == nil {
		c.carrier = time.AfterFunc(wait, c.carry)
	} else {
		c.carrier.Reset(wait)
	}
}

// carry writes what is due to the inner connection.
func (c *conn) carry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.carrying || c.ended || !c.out.waiting() { // a timer that was reset may fire twice
		return
	}
	c.carrying = true
	deadline := time.Time{}
	if c.closed {
		deadline = time.Now().Add(linger)
	}
	_ = c.inner.SetWriteDeadline(deadline)
	for c.out.waiting() && !time.Now().Before(c.out.pieces[0].due) {
		p := c.out.pop()
		c.dooming = p.doomed
		c.mu.Unlock()
		_, err := c.inner.Write(p.data)
		c.mu.Lock()
		c.dooming = false
		c.doomed = c.doomed || p.doomed && err == nil
		if err != nil {
			c.outErr = err
			c.out.clear()
		}
		c.cond.Broadcast()
	}
	c.carrying = false
	switch {
	case c.ended:
	case c.out.waiting():
		c.arm()
	case c.closed:
		_ = c.end() // nobody is there to be told
	default:
		_ = c.inner.SetWriteDeadline(c.writeDeadline)
	}
}
