package sim

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// hole is what a black hole swallows. Nobody is told: there is no refusal, no reset and no end, only silence.
type hole uint8

const (
	requests hole = 1 << iota // bytes to Redis
	replies                   // bytes from Redis
)

// wire is the network between one process and Redis: pipes, because a bubble has no sockets. Bytes take a random delay and
// keep their order. It can become a black hole and be healed again.
//
// A connection that lost bytes stays silent for ever, healed or not: what goes on after a gap is no stream. One that was
// not used meanwhile is as good as before. A connection cannot be made through a black hole, but one that is being made
// when the wire is healed comes about.
type wire struct {
	accept func() (net.Conn, error) // a new connection's far end
	dice   *dice

	mu     sync.Mutex
	hole   hole
	healed chan struct{} // closed by heal
}

const (
	// oneWay is the least delay and delaySpread the mean of what comes to it: a round trip of 0.6 ms on average, as
	// within a data center.
	oneWay      = 200 * time.Microsecond
	delaySpread = 100 * time.Microsecond
)

func newWire(accept func() (net.Conn, error), d *dice) *wire {
	return &wire{accept: accept, dice: d, healed: make(chan struct{})}
}

func (w *wire) delay() time.Duration { return oneWay + w.dice.exponential(delaySpread) }

// swallow makes the wire a black hole for new and existing connections.
func (w *wire) swallow(h hole) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hole = h
}

// heal ends the black hole.
func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hole = 0
	close(w.healed)
	w.healed = make(chan struct{})
}

// dark reports whether the wire swallows what goes in a direction now, and what is closed when that ends.
func (w *wire) dark(h hole) (bool, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hole&h != 0, w.healed
}

// dial makes a connection, in one round trip. It is a go-redis Dialer.
func (w *wire) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	for {
		dark, healed := w.dark(requests | replies)
		if !dark {
			break
		}
		select {
		case <-healed:
		case <-ctx.Done():
			return nil, dialError(ctx.Err())
		}
	}
	timer := time.NewTimer(w.delay() + w.delay())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, dialError(ctx.Err())
	}
	far, err := w.accept()
	if err != nil {
		return nil, dialError(err)
	}
	c := &conn{wire: w, far: far, up: newLane(), down: newLane()}
	go c.carryUp()
	go c.carryDown()
	return c, nil
}

func dialError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		err = os.ErrDeadlineExceeded // as net.Dialer says it
	}
	return &net.OpError{Op: "dial", Net: "pipe", Err: err}
}

// conn is a process' end of a connection; see net.Conn.
type conn struct {
	wire *wire
	far  net.Conn // Redis is at the other side of it
	up   *lane    // to Redis
	down *lane    // from Redis

	mu            sync.Mutex
	closed        bool
	writeDeadline time.Time
}

var _ net.Conn = (*conn)(nil)

// carryUp brings to Redis what has arrived there.
func (c *conn) carryUp() {
	buf := make([]byte, 4096)
	for {
		n, err := c.up.read(buf)
		if err == nil {
			_, err = c.far.Write(buf[:n])
		}
		if err != nil {
			_ = c.far.Close() // nobody is there to be told
			return
		}
	}
}

// carryDown takes from Redis what it answers.
func (c *conn) carryDown() {
	buf := make([]byte, 4096)
	for {
		n, err := c.far.Read(buf)
		if dark, _ := c.wire.dark(replies); dark {
			c.down.tear()
		}
		if n > 0 {
			c.down.put(buf[:n], c.wire.delay)
		}
		if err != nil {
			c.down.end()
			return
		}
	}
}

// Read reads what has arrived.
func (c *conn) Read(p []byte) (int, error) {
	return c.down.read(p)
}

// Write never waits: the kernel's buffer is larger than anything sent here.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	closed, deadline := c.closed, c.writeDeadline
	c.mu.Unlock()
	switch {
	case closed:
		return 0, net.ErrClosed
	case !deadline.IsZero() && !time.Now().Before(deadline):
		return 0, os.ErrDeadlineExceeded
	}
	if dark, _ := c.wire.dark(requests); dark {
		c.up.tear()
	}
	c.up.put(p, c.wire.delay)
	return len(p), nil
}

// Close ends both directions. What is under way to Redis is lost.
func (c *conn) Close() error {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	if closed {
		return net.ErrClosed
	}
	c.up.close()
	c.down.close()
	return nil
}

// LocalAddr is of no use.
func (c *conn) LocalAddr() net.Addr { return c.far.LocalAddr() }

// RemoteAddr is of no use.
func (c *conn) RemoteAddr() net.Addr { return c.far.RemoteAddr() }

// SetDeadline bounds reading and writing.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline bounds reading, a Read that is under way included.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.down.setDeadline(t)
	return nil
}

// SetWriteDeadline bounds writing.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	c.writeDeadline = t
	c.mu.Unlock()
	return nil
}
