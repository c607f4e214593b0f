package faultnet

import (
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// conn is a connection of a network.
//
// While nothing takes time it is read and written in place, by the goroutines of its callers. Else what comes in is
// taken from it by a goroutine, the pump, and what goes out is written by a timer, the carrier; Read and Write only see
// the lanes between. It changes over by kicking: a deadline in the past ends the call on the inner connection, whoever
// made it looks at the faults again, and the user's deadline is restored.
//
// No lock is held while the inner connection is read or written. Its Close and deadlines are called under the lock, they
// do not block.
type conn struct {
	inner  net.Conn
	net    *Net
	number uint64 // by the order of dialing

	mu     sync.Mutex
	cond   sync.Cond // of anything below
	closed bool      // by the user
	broken bool      // cut
	ended  bool      // the inner connection is closed

	in           lane
	inEnded      bool // the last piece of the lane is the end, and stays there
	reading      bool // the inner connection is being read
	pumping      bool // by the pump; its deadline is none
	kickedIn     bool // its deadline is in the past for this reason
	readDeadline time.Time
	readChance   *rand.Rand // of Corrupt
	arriveChance *rand.Rand // of jitter

	out           lane
	outErr        error // of the carrier: what the lane held is lost
	torn          bool  // a black hole swallowed some of what was written
	writer        bool  // a Write is under way; the next waits, so that none is split by another
	writing       bool  // it writes the inner connection
	kickedOut     bool
	carrying      bool // the carrier writes the inner connection; its deadline is none
	carrier       *time.Timer
	writeDeadline time.Time
	writeChance   *rand.Rand

	// A Write that the connection is to be cut after. What comes in while it is being written may be the answer to it or
	// to an earlier one, which is known when it has been written, or has not.
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
	c.readChance, c.writeChance = n.chance(number, forReading), n.chance(number, forWriting)
	c.arriveChance = n.chance(number, forArriving)
	return c
}

// follow makes the connection follow the faults as they are now.
func (c *conn) follow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.net.faults.Load()
	if c.reading && c.pumping != f.queuesIn() && !c.kickedIn {
		c.kickedIn = true
		_ = c.inner.SetReadDeadline(longAgo)
	}
	if c.writing && (f.HoldOut || f.late()) && !c.kickedOut {
		c.kickedOut = true
		_ = c.inner.SetWriteDeadline(longAgo)
	}
	now := time.Now()
	c.in.hasten(now, f)
	c.out.hasten(now, f)
	c.arm()
	c.pumpIfNeeded()
	c.cond.Broadcast()
}

// stopped returns what ends a call at once.
func (c *conn) stopped(op string, deadline time.Time) error {
	switch {
	case c.closed:
		return c.error(op, net.ErrClosed)
	case c.broken:
		return c.error(op, os.NewSyscallError(op, syscall.ECONNRESET))
	case expired(deadline):
		return c.error(op, os.ErrDeadlineExceeded)
	}
	return nil
}

func expired(deadline time.Time) bool { return !deadline.IsZero() && !time.Now().Before(deadline) }

// error is an error as package net would have it.
func (c *conn) error(op string, err error) error {
	e := &net.OpError{Op: op, Source: c.inner.LocalAddr(), Addr: c.inner.RemoteAddr(), Err: err}
	if e.Addr != nil {
		e.Net = e.Addr.Network()
	}
	return e
}

// wait waits for anything to change, but not past the deadline; zero is none.
func (c *conn) wait(deadline time.Time) { waitUntil(&c.cond, deadline, c.wake) }

func (c *conn) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cond.Broadcast()
}

// Close closes the connection. What is under way to the far end arrives first; see the package comment. It does not
// block, and blocked calls return net.ErrClosed.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.error("close", net.ErrClosed)
	}
	c.closed = true
	c.in.clear()
	c.cond.Broadcast()
	if c.broken {
		return nil
	}
	if !c.out.waiting() && !c.carrying {
		return c.end()
	}
	if c.reading {
		_ = c.inner.SetReadDeadline(longAgo) // nobody reads any more
	}
	if c.carrying {
		_ = c.inner.SetWriteDeadline(time.Now().Add(linger))
	}
	return nil
}

// end closes the inner connection.
func (c *conn) end() error {
	c.ended = true
	c.net.forget(c)
	return c.inner.Close()
}

// cut breaks the connection, in both directions and at once. Whoever cuts counts it.
func (c *conn) cut(count *atomic.Int64) {
	if c.ended {
		return
	}
	count.Add(1)
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
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline bounds reading.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readDeadline = t
	c.cond.Broadcast()
	return c.setDeadline(c.inner.SetReadDeadline, t, c.pumping || c.kickedIn)
}

// SetWriteDeadline bounds writing. What is under way arrives later than that.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeDeadline = t
	c.cond.Broadcast()
	return c.setDeadline(c.inner.SetWriteDeadline, t, c.carrying || c.kickedOut)
}

// setDeadline sets a deadline of the inner connection, unless that is set for a reason of ours now: it is set afterwards.
func (c *conn) setDeadline(set func(time.Time) error, t time.Time, ours bool) error {
	switch {
	case c.closed:
		return c.error("set", net.ErrClosed)
	case c.broken, ours:
		return nil
	}
	if err := set(t); !c.inEnded {
		return err
	}
	return nil // a pipe's tells that the far end hung up, which nobody has heard yet
}
