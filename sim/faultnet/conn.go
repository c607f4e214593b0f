package faultnet

import (
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// conn is a connection of a network. Two others do its work: a goroutine, the pump, reads the inner
// connection into a lane, and a timer, the carrier, writes to it what is due in another lane. Read
// and Write see the lanes alone, so that a call goes on under other faults at once, and keeps its
// deadline whatever the far end does.
//
// No lock is held while the inner connection is read or written. Its Close and deadlines are called
// under the lock, they do not block.
type conn struct {
	inner  net.Conn
	net    *Net
	number uint64 // by the order of dialing

	mu     sync.Mutex
	cond   sync.Cond // of anything below
	closed bool      // by the user
	broken bool      // cut
	ended  bool      // the inner connection is closed

	in           lane // its last piece is the end of the stream, once that has come, and stays there
	readDeadline time.Time
	arriveChance *rand.Rand // of jitter

	out           lane
	outErr        error // of the carrier: what the lane held is lost
	torn          bool  // a black hole swallowed some of what was written
	writer        bool  // a Write is under way; the next waits, so that none is split by another
	carrying      bool  // the carrier writes the inner connection
	carrier       *time.Timer
	writeDeadline time.Time
	writeChance   *rand.Rand

	// A Write that the connection is to be cut after. What comes in while it is being written may
	// be the answer to it or to an earlier one, which is known when it has been written, or has
	// not.
	dooming bool // it is being written
	doomed  bool // it has been
}

var _ net.Conn = (*conn)(nil)

// linger is how long the far end of a connection that was closed may take to accept what is due.
const linger = 100 * time.Millisecond

// longAgo is a deadline that has passed, also in a bubble, whose clock starts in 2000.
var longAgo = time.Unix(1, 0)

func newConn(n *Net, inner net.Conn, number uint64) *conn {
	c := &conn{inner: inner, net: n, number: number}
	c.cond.L = &c.mu
	c.writeChance, c.arriveChance = n.chance(number, forWriting), n.chance(number, forArriving)
	go c.pump()
	return c
}

// follow makes the connection follow the faults as they are now.
func (c *conn) follow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, f := time.Now(), c.net.faults.Load()
	c.in.hasten(now, f)
	c.out.hasten(now, f)
	c.arm()
	c.cond.Broadcast()
}

// stopped returns what ends a call at once.
func (c *conn) stopped(op string, deadline time.Time) error {
	switch {
	case c.closed:
		return c.error(op, net.ErrClosed)
	case c.broken:
		return c.error(op, os.NewSyscallError(op, syscall.ECONNRESET))
	case !deadline.IsZero() && !time.Now().Before(deadline):
		return c.error(op, os.ErrDeadlineExceeded)
	}
	return nil
}

// error is an error as package net would have it.
func (c *conn) error(op string, err error) error {
	e := &net.OpError{Op: op, Source: c.inner.LocalAddr(), Addr: c.inner.RemoteAddr(), Err: err}
	if e.Addr != nil {
		e.Net = e.Addr.Network()
	}
	return e
}

// wait waits for anything to change, but not past the deadline; zero is none.
func (c *conn) wait(deadline time.Time) { waitUntil(&c.cond, deadline) }

// Close closes the connection. What is under way to the far end arrives first; see the package
// comment. It does not block, and blocked calls return net.ErrClosed.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.error("close", net.ErrClosed)
	}
	c.closed = true
	c.in.clear()
	c.cond.Broadcast()
	switch {
	case c.broken:
		return nil
	case !c.out.waiting():
		return c.end()
	case c.carrying:
		_ = c.inner.SetWriteDeadline(time.Now().Add(c.net.linger))
	}
	_ = c.inner.SetReadDeadline(longAgo) // the pump is not needed any more
	return nil
}

// end closes the inner connection.
func (c *conn) end() error {
	c.ended = true
	c.net.forget(c)
	return c.inner.Close()
}

// cut breaks the connection, in both directions and at once, and counts it.
func (c *conn) cut(count *int64) {
	if c.ended {
		return
	}
	c.net.count(count)
	c.broken = true
	c.in.clear()
	c.out.clear()
	if c.carrier != nil {
		c.carrier.Stop()
	}
	if tcp, ok := c.inner.(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0) // a reset, not an orderly end
	}
	_ = c.end() // nobody is there to be told
	c.cond.Broadcast()
}

// LocalAddr returns the inner connection's.
func (c *conn) LocalAddr() net.Addr { return c.inner.LocalAddr() }

// RemoteAddr returns the inner connection's.
func (c *conn) RemoteAddr() net.Addr { return c.inner.RemoteAddr() }

// SetDeadline bounds reading and writing, calls that are under way included.
func (c *conn) SetDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.readDeadline, &c.writeDeadline)
}

// SetReadDeadline bounds reading.
func (c *conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.readDeadline) }

// SetWriteDeadline bounds writing. What is under way arrives later than that.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.writeDeadline) }

func (c *conn) setDeadlines(t time.Time, all ...*time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.error("set", net.ErrClosed)
	}
	for _, deadline := range all {
		*deadline = t
	}
	c.cond.Broadcast()
	return nil
}
