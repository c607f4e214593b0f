package faultnet

import (
	"errors"
	"os"
	"time"
)

// Read reads what has arrived.
func (c *conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		f := c.net.faults.Load()
		if !c.closed && !c.broken && !c.reading && !c.in.waiting() && !f.queuesIn() {
			if n, done, err := c.readInPlace(p); done {
				return n, err
			}
			continue
		}
		if err := c.stopped("read", c.readDeadline); err != nil {
			return 0, err
		}
		if len(p) == 0 {
			return 0, nil
		}
		until := c.readDeadline
		if c.in.waiting() && !f.HoldIn {
			first := &c.in.pieces[0]
			switch now := time.Now(); {
			case now.Before(first.due):
				if until.IsZero() || first.due.Before(until) {
					until = first.due
				}
			case first.doubtful && c.doomed:
				c.cut(&c.net.cutAfter)
				continue
			case first.doubtful && c.dooming: // it is not known yet whose answer it is
			case first.err != nil:
				return 0, first.err
			default:
				return c.corrupt(p[:c.take(p, now)]), nil
			}
		}
		c.wait(until)
	}
}

// readInPlace reads the inner connection for a caller. It is not done when the faults have changed meanwhile.
func (c *conn) readInPlace(p []byte) (n int, done bool, err error) {
	c.reading = true
	c.mu.Unlock()
	n, err = c.inner.Read(p)
	c.mu.Lock()
	c.reading = false
	c.cond.Broadcast()
	kicked := c.unkickIn()
	if stop := c.stopped("read", time.Time{}); stop != nil {
		return 0, true, stop
	}
	changed := kicked && errors.Is(err, os.ErrDeadlineExceeded) // the deadline, if it has passed as well, is looked at again
	if n > 0 {
		if !c.net.faults.Load().queuesIn() && !c.doomed && !c.dooming {
			return c.corrupt(p[:n]), true, err
		}
		c.arrive(p[:n]) // an error that came with it comes again
		changed = true
	}
	c.pumpIfNeeded()
	if changed {
		return 0, false, nil
	}
	return 0, true, err
}

// unkickIn restores the user's deadline, and reports whether it was another.
func (c *conn) unkickIn() bool {
	kicked := c.kickedIn
	if kicked {
		c.kickedIn = false
		_ = c.inner.SetReadDeadline(c.readDeadline)
	}
	return kicked
}

// take moves what is due into p, which has room for a byte at least.
func (c *conn) take(p []byte, now time.Time) (n int) {
	for n < len(p) && c.in.waiting() {
		first := &c.in.pieces[0]
		if now.Before(first.due) || first.doubtful && (c.doomed || c.dooming) || first.err != nil {
			break
		}
		m := copy(p[n:], first.data)
		n += m
		first.data = first.data[m:]
		c.in.bytes -= m
		if len(first.data) == 0 {
			c.in.pop()
		}
	}
	c.cond.Broadcast() // the pump may wait for room
	return n
}

// corrupt changes a byte of p, where chance wants it, and returns the length of p.
func (c *conn) corrupt(p []byte) int {
	chance, which := c.readChance.Float64(), c.readChance.Uint64()
	if chance < c.net.faults.Load().Corrupt {
		p[which>>8%uint64(len(p))] ^= byte(1 + which%255)
		c.net.corrupted.Add(1)
	}
	return len(p)
}

// arrive puts what came in into the lane.
func (c *conn) arrive(data []byte) {
	f, now := c.net.faults.Load(), time.Now()
	for len(data) > 0 {
		n := len(data)
		if f.Rate > 0 {
			n = min(n, segment)
		}
		p := piece{data: append([]byte(nil), data[:n]...), doubtful: c.doomed || c.dooming, spread: c.arriveChance.Float64()}
		c.in.put(p, now, f)
		c.countIn(f)
		data = data[n:]
	}
	c.cond.Broadcast()
}

func (c *conn) countIn(f *Faults) {
	if f.late() {
		c.net.late.Add(1)
	}
	if f.HoldIn {
		c.net.withheld.Add(1)
	}
}

// pumps reports whether the pump has to be at work.
func (c *conn) pumps() bool {
	return !c.closed && !c.broken && !c.inEnded && c.net.faults.Load().queuesIn()
}

// pumpIfNeeded starts the pump.
func (c *conn) pumpIfNeeded() {
	if c.reading || !c.pumps() {
		return
	}
	c.reading, c.pumping = true, true
	_ = c.inner.SetReadDeadline(time.Time{})
	go c.pump()
}

// pump takes what comes in from the inner connection while bytes take time, or are withheld.
func (c *conn) pump() {
	buf := make([]byte, 16<<10)
	for {
		n, err := c.inner.Read(buf)
		c.mu.Lock()
		c.arrive(buf[:n])
		if err != nil && !(c.kickedIn && errors.Is(err, os.ErrDeadlineExceeded)) && !c.closed && !c.broken {
			f := c.net.faults.Load()
			c.in.put(piece{err: err, doubtful: c.doomed || c.dooming, spread: c.arriveChance.Float64()}, time.Now(), f)
			c.countIn(f)
			c.inEnded = true
		}
		for c.in.full() && c.pumps() {
			c.cond.Wait()
		}
		if err != nil || !c.pumps() {
			c.reading, c.pumping = false, false
			if !c.unkickIn() {
				_ = c.inner.SetReadDeadline(c.readDeadline)
			}
			c.pumpIfNeeded() // the faults may have changed and changed back
			c.cond.Broadcast()
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}
