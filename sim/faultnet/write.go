package faultnet

import (
	"bytes"
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
		c.cut(&c.net.counts.CutBefore)
		return 0, c.stopped("write", time.Time{})
	}
	doomed := after < f.CutAfter
	for {
		f = c.net.faults.Load()
		if err := c.stopped("write", c.writeDeadline); err != nil {
			return n, err
		}
		switch {
		case c.outErr != nil:
			return n, c.outErr
		case n == len(p):
			return n, nil
		case c.torn || f.HoldOut:
			c.torn = true
			c.net.count(&c.net.counts.Lost)
			return len(p), nil
		case c.out.full():
			c.wait(c.writeDeadline)
			continue
		}
		m := min(len(p)-n, window-c.out.bytes)
		next := piece{data: bytes.Clone(p[n : n+m]), spread: spread}
		n += m
		next.doomed = doomed && n == len(p)
		c.out.put(next, time.Now(), f)
		if f.late() {
			c.net.count(&c.net.counts.Late)
		}
		c.arm()
		if n == len(p) {
			return n, nil
		}
	}
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
	if c.carrying || c.ended { // a timer that was reset may fire twice
		return
	}
	c.carrying = true
	if c.closed {
		_ = c.inner.SetWriteDeadline(time.Now().Add(linger))
	}
	for c.out.waiting() && !time.Now().Before(c.out.pieces[0].due) {
		p := c.out.pieces[0] // it stays there, so that the window is kept
		c.dooming = p.doomed
		c.mu.Unlock()
		_, err := c.inner.Write(p.data)
		c.mu.Lock()
		c.dooming = false
		c.doomed = c.doomed || p.doomed && err == nil
		if c.outErr = err; err != nil || c.ended {
			c.out.clear()
		} else {
			c.out.skip(len(p.data))
		}
		c.cond.Broadcast()
	}
	c.carrying = false
	c.arm()
	if c.closed && !c.ended && !c.out.waiting() {
		_ = c.end() // nobody is there to be told
	}
}
