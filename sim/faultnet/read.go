package faultnet

import (
	"bytes"
	"time"
)

// Read reads what has arrived.
func (c *conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.stopped("read", c.readDeadline); err != nil || len(p) == 0 {
			return 0, err
		}
		until := c.readDeadline
		if c.in.waiting() && !c.net.faults.Load().HoldIn {
			first := &c.in.pieces[0]
			switch now := time.Now(); {
			case now.Before(first.due):
				if until.IsZero() || first.due.Before(until) {
					until = first.due
				}
			case first.doubtful && c.doomed:
				c.cut(&c.net.counts.CutAfter)
				continue
			case first.doubtful && c.dooming: // it is not known yet whose answer it is
			case first.err != nil:
				return 0, first.err
			default:
				n := copy(p, first.data)
				c.in.skip(n)
				c.cond.Broadcast() // the pump may wait for room
				return n, nil
			}
		}
		c.wait(until)
	}
}

// pump takes what comes in from the inner connection, until that ends.
func (c *conn) pump() {
	buf := make([]byte, 16<<10)
	for goesOn := true; goesOn; {
		n, err := c.inner.Read(buf)
		c.mu.Lock()
		if n > 0 {
			c.arrive(piece{data: bytes.Clone(buf[:n])})
		}
		if err != nil {
			c.arrive(piece{err: err})
		}
		for c.in.full() && !c.closed && !c.broken {
			c.cond.Wait()
		}
		goesOn = err == nil && !c.closed && !c.broken
		c.mu.Unlock()
	}
}

// arrive puts what came in into the lane.
func (c *conn) arrive(p piece) {
	if c.closed || c.broken {
		return
	}
	f := c.net.faults.Load()
	p.doubtful, p.spread = c.doomed || c.dooming, c.arriveChance.Float64()
	c.in.put(p, time.Now(), f)
	if f.late() {
		c.net.count(&c.net.counts.Late)
	}
	if f.HoldIn {
		c.net.count(&c.net.counts.Withheld)
	}
	c.cond.Broadcast()
}
