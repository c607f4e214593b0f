package faultnet

import (
	"bytes"
	"time"
)

// lane is one direction of a connection. Pieces arrive in the order in which they were put: each
// when it is due, and those before it have arrived.
type lane struct {
	pieces []piece
	bytes  int // in pieces
}

// piece is some bytes that arrive together.
type piece struct {
	data     []byte
	err      error // instead of data, the end of the stream
	due      time.Time
	spread   float64 // its part of the jitter, 0 to 1
	doubtful bool    // it came in after a Write that the connection is to be cut after
	doomed   bool    // it ends a Write that the connection is to be cut after
}

// window is how many bytes a lane holds before its writer has to wait, as for the buffers of a
// socket.
const window = 256 << 10

// full reports whether a writer has to wait.
func (l *lane) full() bool { return l.bytes >= window }

// waiting reports whether there is anything in the lane.
func (l *lane) waiting() bool { return len(l.pieces) > 0 }

// put sends a piece on its way. The lane keeps its data.
func (l *lane) put(p piece, now time.Time, f *Faults) {
	p.due = f.due(now, p.spread)
	l.pieces = append(l.pieces, p)
	l.bytes += len(p.data)
}

// hasten brings forward what would arrive sooner if it were put now.
func (l *lane) hasten(now time.Time, f *Faults) {
	for i := range l.pieces {
		if p := &l.pieces[i]; f.due(now, p.spread).Before(p.due) {
			p.due = f.due(now, p.spread)
		}
	}
}

// skip takes n bytes from the first piece, and takes it out if no more are left.
func (l *lane) skip(n int) {
	l.bytes -= n
	if p := &l.pieces[0]; n < len(p.data) {
		p.data = p.data[n:]
		return
	}
	l.pieces[0] = piece{}
	l.pieces = l.pieces[1:]
}

// clear loses everything.
func (l *lane) clear() { l.pieces, l.bytes = nil, 0 }

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
	// Drawn whatever the faults are, so that what happens to the next Write does not depend on what
	// they were for this.
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
		_ = c.inner.SetWriteDeadline(time.Now().Add(c.net.linger))
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
